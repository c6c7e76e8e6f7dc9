"""`stats replication`: a master and its slaves in lines of `key value`."""

from collections.abc import Iterable

from meta_broker.replication.master.master import Master


def report_lines(master: Master, now: float) -> Iterable[str]:
    """Yield the line of the master, then one line a slave."""
    in_sync, section, journal = master.in_sync, master.section, master.journal
    yield (
        f"master mode {section.mode} epoch {journal.epoch} in_sync {','.join(map(str, in_sync.members)) or '-'} "
        f"in_sync_min {section.in_sync_min} without_slaves {section.without_slaves} state {state_of(master)} "
        f"high_watermark {master.store.high_watermark.acknowledged} end {journal.end}"
    )
    for slave_id, sender in master.links():
        view = in_sync.slaves[slave_id]
        reported = view.reported or 0
        why_not = "unreadable" if sender is not None and sender.read_error else in_sync.why_not(slave_id, now)
        serves = sender is not None and sender.handshake is not None and sender.handshake.serves
        yield (
            f"slave {slave_id} peer {sender.name if sender else '-'} in_sync {_word(slave_id in in_sync.members)} "
            f"reason {why_not or '-'} flushed {reported} "
            f"lag_bytes {max(journal.end - reported, 0)} "
            f"lag_ms {0 if reported >= journal.end else int(in_sync.lag_s(slave_id, now) * 1000)} "
            f"serves {_word(serves)}"
        )


def state_of(master: Master) -> str:
    """Return the state of writes: `async`, `sync`, `degraded` (no slave is waited for), `refusing`, or `full`."""
    is_refusing = bool(master.why_refusing())
    if master.store.space.is_full and not is_refusing:
        return "full"
    if master.section.mode == "async":
        return "async"
    if is_refusing:
        return "refusing"
    return "degraded" if master.in_sync.is_under_min else "sync"


def _word(flag: bool) -> str:
    return "true" if flag else "false"
