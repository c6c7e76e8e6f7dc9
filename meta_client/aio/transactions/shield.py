"""Shields database statements with a vital outcome from the task's cancellation."""

from collections.abc import Collection

from meta_client.aio.bridge.bridge import check_cancelled, shielded
from meta_client.transactions.table import CommitFailure, Opener, Session, TableIdentity


class ShieldedSession:
    """A session whose BEGIN, row, COMMIT and ROLLBACK complete despite cancellation. Inside `run_shielded`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def driver_connection(self) -> object:
        return self._session.driver_connection()

    def begin(self) -> TableIdentity:
        with shielded():
            return self._session.begin()

    def problem(self) -> str | None:
        check_cancelled()
        return self._session.problem()

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        with shielded():
            self._session.decide(gtrid, brokers)
        check_cancelled()  # last chance to roll back

    def commit(self) -> None:
        with shielded():
            self._session.commit()

    def classify_commit(self, error: Exception) -> CommitFailure:
        return self._session.classify_commit(error)

    def rollback(self) -> None:
        with shielded():
            self._session.rollback()

    def opener(self) -> Opener:
        return self._session.opener()
