"""A connection that speaks the wire without a client: what is measured is the broker's."""

import socket

from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Request
from meta_client.protocol.responses import Response
from meta_client.protocol.responses import Result as Answer

ANSWER_TIMEOUT_S = 120


class Peer:
    """One connection that sends requests and waits."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = ResponseDecoder()
        self._received: list[Response] = []

    def ask(self, *requests: Request) -> list[Answer]:
        """Send all requests, then receive a reply to each; all must be 200."""
        answers = list[Answer]()
        for answer in self.exchange(*requests):
            assert isinstance(answer, Answer)
            assert answer.is_success, answer.text
            answers.append(answer)
        return answers

    def exchange(self, *requests: Request) -> list[Response]:
        """Send all requests, then receive a reply to each, of any status."""
        self._socket.sendall(b"".join(b"".join(encode_request(request)) for request in requests))
        answers = list[Response]()
        while len(answers) < len(requests):
            answers += self._decoder.receive_data(self._socket.recv(1 << 16))
        return answers

    def close(self) -> None:
        self._socket.close()
