"""The write-ahead log: storage, segments, scanning, the writer and the high watermark."""
