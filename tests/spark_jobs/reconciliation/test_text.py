"""Text of a reconciliation for people, of one with something of everything."""

from typing import Any

from spark_jobs.reconciliation.text import UNREADABLE_BROKER, lines

EPOCHS = [
    {"epoch": 1, "since_ms": 1_000, "until_ms": 2_000, "until_lsn": 500},
    {"epoch": 2, "since_ms": 9_000, "until_ms": 9_500, "until_lsn": 900},
]
FOUND: dict[str, Any] = {
    "database": {"place": "shop", "wal_lsn": "0/1", "is_restored": True, "generation": 3, "noted": 5},
    "brokers": [{"broker": 0, "directory": "/data", "first_lsn": 128, "end_lsn": 900, "epochs": EPOCHS}],
    "brokers_not_given": [2],
    "transactions": [
        {
            "kind": "missing",
            "name": "n",
            "time_ms": None,
            "rows": [],
            "decision": None,
            "branches": [],
            "absent": [UNREADABLE_BROKER, 1],
            "reason": "gone",
            "commands": [],
            "verbs": [],
            "dead_end": "nothing brings it back",
        }
    ],
    "not_listed": {"missing": 1200},
    "consumers": [
        {"group": "g", "topic": "t", "partition": "0-0", "offset": 9, "state": "beyond", "end": 5},
        {"group": "g", "topic": "t", "partition": "0-1", "offset": 1, "state": "within", "end": 5},
    ],
    "accounts": [{"what": "rows", "counted": 1, "expected": 2}, {"what": "branches", "counted": 3, "expected": 3}],
    "refused": ["one"],
    "sentence": "They differ.",
    "then": ["metaq txn init --restored"],
}


def test_every_kind_of_line() -> None:
    told = list(lines(FOUND))
    for part in (
        "RESTORED to an earlier time, or a copy, or emptied: its decision table is at generation 3",
        "  epoch 1 ends at LSN 500, ",
        "NOT READ: broker 2, which ZooKeeper knows: give --dir",
        "  a broker whose name can't be read: named by the decision, and no branch",
        "  broker 1: named by the decision, and no branch",
        "  beyond any command: nothing brings it back",
        "1,200 more missing: --limit N lists them",
        "group g, t 0-0: offset 9 is beyond, which is 5",
        "rows: 1 DIFFERS FROM 2",
        "branches: 3 = 3",
        "not to be relied on: one",
        "When all of it is mended: metaq txn init --restored",
    ):
        assert any(part in line for line in told), part
    assert not any("0-1" in line for line in told), "that one is where it should be"


def test_many_in_doubt_are_ended_by_one_command_a_verb() -> None:
    def told(*verbs: str) -> list[str]:
        doubts = [
            FOUND["transactions"][0] | {"commands": [f"metaq txn {verb} KEY"], "verbs": [verb, "forget"]}
            for verb in verbs
        ]
        return [line for line in lines(FOUND | {"transactions": doubts}) if line.startswith("  $ ")]

    assert told("commit") == ["  $ metaq txn commit KEY"]
    assert told("commit", "commit", "rollback") == [
        "  $ metaq txn commit --from FILE --why 'metaq reconcile: committed'  # 2 transactions",
        "  $ metaq txn rollback --from FILE --why 'metaq reconcile: rolled back'  # 1 transactions",
        "  $ metaq txn forget --from FILE",
    ]
    assert told("commit", "commit")[0].endswith("# 2 transactions")


def test_what_zookeeper_would_have_told() -> None:
    unknown = FOUND | {"brokers_not_given": None, "database": FOUND["database"] | {"is_restored": None}}
    assert sum("unknown: ZooKeeper was not asked (--zk)" in line for line in lines(unknown)) == 2
    whole = FOUND | {"brokers_not_given": [], "database": FOUND["database"] | {"is_restored": False}}
    assert any("not restored, as far as resolvers have noted (generation 3)" in line for line in lines(whole))
