"""`metaq console`: a web page over what the commands read, with no state of its own. Nothing is fetched at run time.

Read: access (who may ask) -> reads (threads with time limits) -> settings -> views (pure) and readers: brokers,
in_doubt, diagnosis, topics, messages, groups -> rendering -> pages (paths), changes (what --allow-changes adds), live
(server-sent events) -> server -> command. `static/` has htmx and uPlot with their licences.
"""
