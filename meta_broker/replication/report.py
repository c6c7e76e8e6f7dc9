"""`stats replication`: a master and its slaves in lines of `key value`."""

from collections.abc import Iterable

from meta_broker.replication.master import Master


def report_lines(master: Master, now: float) -> Iterable[str]:
    """`stats replication`: the master, then each slave."""
    in_sync, section, journal = master.in_sync, master.section, master.journal
    yield (
        f"master mode {section.mode} epoch {journal.epoch} in_sync {','.join(map(str, in_sync.members)) or '-'} "
        f"in_sync_min {section.in_sync_min} without_slaves {section.without_slaves} state {state_of(master)} "
        f"fence {master.store.fence.acknowledged} end {journal.end}"
    )
    for slave_id, feeder in master.links():
        view = in_sync.slaves[slave_id]
        reported = view.reported or 0
        why_not = "unreadable" if feeder is not None and feeder.trouble else in_sync.why_not(slave_id, now)
        serves = feeder is not None and feeder.hello is not None and feeder.hello.serves
        yield (
            f"slave {slave_id} peer {feeder.name if feeder else '-'} in_sync {_word(slave_id in in_sync.members)} "
            f"reason {why_not or '-'} flushed {reported} "
            f"behind_bytes {max(journal.end - reported, 0)} "
            f"behind_ms {0 if reported >= journal.end else int(in_sync.lag_s(slave_id, now) * 1000)} "
            f"serves {_word(serves)}"
        )


def state_of(master: Master) -> str:
    """What becomes of a write now: `async`, `sync`, `degraded` (no slave is waited for) or `refusing`."""
    if master.section.mode == "async":
        return "async"
    if master.in_sync.is_refusing:
        return "refusing"
    return "degraded" if master.in_sync.is_short else "sync"


def _word(flag: bool) -> str:
    return "true" if flag else "false"
