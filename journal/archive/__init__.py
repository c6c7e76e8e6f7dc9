"""An archive of segments that retention took away, and the manifest that lists them.

Read: manifest (pure) -> keeper (stores a segment, then lists it), view, download (what is listed, and nothing else) ->
object_place, places (where archives are).
"""
