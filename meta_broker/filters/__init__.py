"""Filters at the broker: operators' code that decides which messages a group gets (spec 4.8).

Read: emulation (replies of a filtered get), pipe (protocol between broker and worker) -> worker (the process that runs
a filter) -> process (the broker's end) -> runner (one filter's gets, one after the other). A filter is foreign code: it
runs in its own process, for a bounded time, and can harm only its own group's gets.
"""
