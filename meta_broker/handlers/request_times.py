"""Durations of requests by verb, for metrics: from the begin of their handling to the queueing of their reply.

A handler that answers later takes the beginning with `defer` and gives it to `observe`.
"""

from time import perf_counter

from journal.wal.histogram import Histogram, HistogramSnapshot
from meta_broker.access.needs import KINDS
from meta_client.protocol.requests import TransactionCommand, TransactionVerb


class RequestTimes:
    """Durations of a broker's requests. Loop thread only, except `snapshots`."""

    def __init__(self) -> None:
        self.began = 0.0  # of the request being handled, unless it is answered later
        verbs = {kind: known.verb for kind, known in KINDS.items() if known.verb is not None}
        self._by_verb = {verb: Histogram() for verb in (*verbs.values(), *(verb.lower() for verb in TransactionVerb))}
        self._by_type = {kind: self._by_verb[verb] for kind, verb in verbs.items()}
        self._by_transaction_verb = {verb: self._by_verb[verb.lower()] for verb in TransactionVerb}
        self._untimed = Histogram()

    def count_as(self, kind: type, known: type) -> None:
        self._by_type[kind] = self._by_type[known]

    def of(self, request: object) -> Histogram:
        """Return the histogram of the request's verb; one that nobody reads for a verb without."""
        if (durations := self._by_type.get(type(request))) is not None:
            return durations
        if isinstance(request, TransactionCommand):
            return self._by_transaction_verb[request.verb]
        return self._untimed

    def defer(self) -> float:
        """Take the beginning of the request being handled, which is answered later; 0: none is being handled."""
        began, self.began = self.began, 0.0
        return began

    def observe(self, durations: Histogram, began: float) -> None:
        """Record that a deferred request is answered."""
        if began:
            durations.observe(perf_counter() - began)

    def snapshots(self) -> list[tuple[str, HistogramSnapshot]]:
        """Return each verb with its durations. Any thread."""
        return [(verb, durations.snapshot()) for verb, durations in self._by_verb.items()]
