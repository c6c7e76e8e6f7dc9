"""Consuming: a member of a group owns partitions, fetches from them, and hands over batches (spec 8, 9).

Read: batch, position, config, plan, routing, fetch_request, refusing, exits, delay_queue, watchdog (pure) ->
offsets, acknowledging, sifting -> delivery (where fetching and handing over meet), listening -> flights, asking,
assignments -> fetcher (runner threads), pulling -> subscription, holdings, rebalances, watching, group (the thread that
talks to ZooKeeper) -> consumer (for users).
"""
