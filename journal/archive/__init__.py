"""An archive of segments that retention took away, and the manifest that lists them.

Read: manifest (pure) -> keeper (stores a segment, then lists it) -> directory (a place on a file system).
"""
