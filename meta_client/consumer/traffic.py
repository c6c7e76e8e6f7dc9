"""Lag and deliveries of a consumer, as its metrics show them."""

from typing import NamedTuple

from meta_client.consumer.fetched_partition import FetchedPartition, PartitionState


class PartitionLag(NamedTuple):
    """Lag of one partition, as its broker last told; None: it did not, as genuine brokers do not, it is away, nobody
    asks it while ZooKeeper is away, or the offset is beyond the end. *seconds*: time since this consumer had
    everything, from its assignment on; it grows while nothing can be fetched."""

    bytes: int | None
    seconds: float | None
    messages: int | None = None  # once they were counted, of a broker that can


class ConsumedTotals(NamedTuple):
    """Totals of a topic since the start. *messages*, *bytes*: what listeners, or fetch(), have taken, with
    repetitions; *skipped_bytes*: up to so many were deleted by retention before the group consumed them, of which no
    lag tells afterwards."""

    messages: int = 0
    bytes: int = 0
    skipped_bytes: int = 0


def lag_of(request: FetchedPartition, now: float, *, is_paused: bool) -> PartitionLag:
    """Return the lag at *now*, by the monotonic clock. *is_paused*: nobody asks the broker for now."""
    if request.log_end is None:
        return PartitionLag(None, None)
    behind = request.log_end - request.offset
    # While nobody asks for it, as in a pause, nobody knows.
    has_everything = request.is_at_end and not request.has_error and request.state is PartitionState.WAITING
    seconds = 0.0 if has_everything else max(now - request.caught_up_at, 0.0)
    messages = request.backlog.lag(request.offset)  # which has them counted
    if behind < 0 or request.has_error or is_paused:  # the first: messages were lost, those at the end are other ones
        return PartitionLag(None, seconds)
    return PartitionLag(behind, seconds, messages if behind else 0)
