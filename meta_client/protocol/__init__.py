"""The Metamorphosis 1.4 wire protocol, without a socket: values in, bytes out, and back. Bytes: PROTOCOL.md.

Read: status, checksum, integers, xa (vocabulary) -> requests, responses (what is said) -> errors, answers (what
the texts inside responses mean) -> compression, messages (frames inside values), frame_columns, stamping -> encoder ->
limits, buffer, request_lines, response_lines, decoder -> version, id_layout.
"""
