"""Fixed parts of the records' meta parts, as FORMAT.md draws them. Pure. Stands alone: writer and
reader share them."""

import struct

PUT = struct.Struct("<QII")  # base offset, message count, partition; the topic follows
SEQUENCE = struct.Struct("<qQB")  # first message id, batch number, producer bytes; producer and topic follow
BRANCH = struct.Struct("<QH")  # branch LSN, key bytes; the key follows
RUN = struct.Struct("<II")  # message count, partition; the topic follows
ASSIGNMENT_COUNT = struct.Struct("<BI")  # one phase, takes
ASSIGNMENT = struct.Struct("<QQIIB")  # base offset, bytes, message count, partition, topic bytes; the topic follows
PREPARE = struct.Struct("<QQ")  # messages, bytes
RELOCATE = struct.Struct("<IIQIB")  # partition, first extent, bytes before, extents, topic bytes; topic, extents
RELOCATED = struct.Struct("<QQII")  # LSN before, milliseconds, bytes, messages
HEURISTIC = struct.Struct("<BQQQHH")  # decision, prepared, messages, bytes, who bytes, why bytes; who and why follow
EPOCH = struct.Struct("<II")
CHECKPOINT = struct.Struct("<QQ")  # file number, LSN
END_COUNT = struct.Struct("<I")  # ends
END = struct.Struct("<QIB")  # offset, partition, topic bytes; the topic follows
