from collections.abc import Callable
from typing import Any, Generic, TypeVar

from meta_client.producer.batch import ProducerBatch

Handle = TypeVar("Handle")

INTERFACE: int

class Intake(Generic[Handle]):
    def __new__(
        cls,
        locked: Callable[[], bool] | None,
        engine: object,
        open_batches: dict[Any, ProducerBatch],
        handle: Callable[[ProducerBatch, int], Handle],
        header_bytes: int,
        data_bytes_max: int,
        messages_max: int,
        batch_bytes: int,
        bytes_max: int,
    ) -> Intake[Handle]: ...
    def add(self, topic: str, body: bytes, /) -> Handle | None: ...
