"""The Metamorphosis 1.4 wire protocol, without a socket: values to bytes, and back. Bytes: PROTOCOL.md.

Read: status, checksum, integers, xa (vocabulary) -> requests, responses (commands) -> errors, answers (texts inside
responses) -> compression, messages (frames inside values), frame_columns, stamping -> encoder -> limits, buffer,
body_buffers, request_lines, response_lines, decoder -> version, id_layout.
"""
