"""Consuming: a member of a group owns partitions, fetches from them, and delivers batches (spec 8, 9).

Read: messages/ (what is received), position, config, rebalance_plan, routing, fetch_request, error_policy,
listener_exit, delay_queue, watchdog (pure) -> offsets, acknowledging, filtering -> delivery (interface between fetching
and delivery), listening -> long_poll, fetched_partition (states), assignments (one lock) -> fetch_client, fetcher
(runner threads), pulling -> subscription, subscriptions, owned_partitions, rebalance_history, watching, group_member
(the thread that uses ZooKeeper) -> dead_letters/, redelivery, dead_letter_queue -> consumer (for users). offset_stores/
are alternatives to ZooKeeper.
"""
