"""Filters at the broker: code of the operator's that decides which messages a group gets (spec 4.8).

Read: emulation (what a filtered get answers), pipe (what broker and worker say to each other) -> worker (the process
that runs a filter) -> process (its other end) -> runner (one filter's gets, one after the other). A filter is somebody
else's code: it runs in a process of its own, for a bounded time, and whatever it does only its own group's gets suffer.
"""
