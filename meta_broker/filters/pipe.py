"""Protocol between a broker and a filter's process, over two pipes. Numbers are big-endian uint32.

    worker, once:   length, why the filter cannot be used (empty: it can)
    broker, a get:  length of the group's name, length of the slice; name, slice
    worker, then:   number of verdicts, length of the text; for each whole message its end (uint32) and 1 or 0; text

The text describes the last exception that the filter raised, empty if none. Stands alone: both processes
import it, and the worker's nothing else of the broker.
"""

import struct

LENGTH = struct.Struct(">I")
QUESTION = struct.Struct(">II")
ANSWER = struct.Struct(">II")
VERDICT = struct.Struct(">IB")
TEXT_BYTES_MAX = 2_000
