"""Consuming: a member of a group owns partitions, fetches from them, and hands over batches (spec 8, 9).

Read: batch, config, fetch_request, plan, routing, delay_queue (pure) -> offsets, flights, asking ->
fetcher (runner threads) -> holdings, rebalances, group (the thread that talks to ZooKeeper) -> consumer (for users).
"""
