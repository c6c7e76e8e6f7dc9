"""Back-ups of a journal: manifest -> backup (a consistent copy of a live directory) -> copy_back (the way back).

A back-up is a directory of segments up to one LSN, the newest checkpoint below it, and a manifest, written last, with
the size and SHA-256 of each file.
"""
