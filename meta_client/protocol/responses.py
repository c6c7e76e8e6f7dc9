"""Responses: what a broker answers (spec 1.4). The opaque is the request's; responses come in any order."""

from dataclasses import dataclass

from meta_client.protocol.status import Status


# Not frozen, for the reason given in requests.py.
@dataclass(slots=True)
class Result:
    """A status and a text. What an empty text means depends on the request; the wire can't tell it from none."""

    status: int  # usually a Status
    message: bytes
    opaque: int

    @property
    def is_success(self) -> bool:
        """Whether the broker did what was asked. Every other status is a failure."""
        return self.status == Status.SUCCESS

    @property
    def text(self) -> str:
        """The message for people. Bytes that are not UTF-8 show as U+FFFD, as in the Java client."""
        return self.message.decode(errors="replace")


@dataclass(slots=True)
class Value:
    """Message frames, packed back to back, the last one possibly cut off. Answers a get, nothing else."""

    body: bytes
    opaque: int


Response = Result | Value
