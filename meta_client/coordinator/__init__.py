"""One transaction over a PostgreSQL database and a broker: a row and its message, both or neither.

Two-phase commit with presumed abort: both branches prepare, the decision to commit is made durable in the
coordinator's own journal (that is the commit point), then it is carried out on both sides, the database first,
so that no consumer sees a message before its row. What a crash leaves in doubt, `Coordinator.recover` finishes.

    with Coordinator.open("/var/lib/shop/decisions", "shop") as coordinator:
        coordinator.recover([connection], [producer])  # at every start
        with coordinator.transaction(connection, producer, topics=["orders"]):
            connection.execute("INSERT INTO orders ...")
            producer.send("orders", b"...")

Read: steps, names, receipts -> log_origin, decision_log -> participants (demands on a side), postgres,
broker_codes, broker -> in_flight, phase_two (commits until it is done) -> background_recovery -> transaction
-> recovery -> status (what was done) -> coordinator -> metrics.
"""

from meta_client.coordinator.coordinator import Coordinator
from meta_client.coordinator.errors import (
    CoordinatorClosed,
    CoordinatorError,
    CopiedLog,
    DecisionUnknown,
    HeuristicOutcome,
    PrepareFailed,
    Unreachable,
)
from meta_client.coordinator.recovery import RecoveredTransaction
from meta_client.coordinator.steps import TwoPhaseStep
from meta_client.coordinator.transaction import CoordinatedTransaction

__all__ = [
    "CoordinatedTransaction",
    "Coordinator",
    "CoordinatorClosed",
    "CoordinatorError",
    "CopiedLog",
    "DecisionUnknown",
    "HeuristicOutcome",
    "PrepareFailed",
    "RecoveredTransaction",
    "TwoPhaseStep",
    "Unreachable",
]
