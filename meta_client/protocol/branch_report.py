"""An operator's report on a branch: the same from a broker and from a stopped broker's directory."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from journal.errors import UnreadableRange
from journal.records.heuristics import HeuristicDecision, HeuristicEnd
from journal.records.ledger import Finding
from journal.records.states import BranchState
from journal.state.journal_state import Branch
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.compression import codec_number
from meta_client.protocol.messages import FLAG_ATTRIBUTE, HEADER, HEADER_BYTES
from meta_client.protocol.trace_context import split_traceparent

PARTITIONS_SHOWN: Final = 100
MESSAGES_SHOWN: Final = 5
PREVIEW_BYTES: Final = 80
PEEK_BYTES: Final = 16 * 1024  # of an extent: five small messages, or the beginning of a large one

DECIDED: Final = {
    HeuristicDecision.COMMIT: BranchStatus.HEURISTICALLY_COMMITTED,
    HeuristicDecision.ROLLBACK: BranchStatus.HEURISTICALLY_ROLLED_BACK,
    HeuristicDecision.COMPLETE: BranchStatus.HEURISTICALLY_COMPLETED,
}

Report = dict[str, Any]  # JSON
ReadBody = Callable[[int, int], bytes | memoryview]  # returns a number of journal bytes from an LSN on


def live_report(
    branch: Branch,
    read: ReadBody,
    *,
    origin: str = "",
    timeout_ms: int = 0,
    may_read: Callable[[str], bool] = lambda _: True,
) -> Report:
    """Report on a branch with messages. *origin*: the client, if known. Times are in ms since 1970; 0: never. Of topics
    that are not *may_read* no attribute and no payload are shown."""
    partitions = [
        {
            "topic": name.topic,
            "partition": name.partition,
            "messages": runs.messages,
            "bytes": runs.bytes,
            "first_lsn": runs[0].lsn,
            "last_ms": runs[-1].time_ms,
        }
        for name, runs in list(branch.extents.items())[:PARTITIONS_SHOWN]
    ]
    messages: list[Report] = []
    unreadable = None
    try:
        messages.extend(_first_messages(branch, read, may_read))
    except UnreadableRange as error:  # the branch can be decided without its bytes
        unreadable = str(error)
    status = BranchStatus.PREPARED if branch.state is BranchState.PREPARED else BranchStatus.ACTIVE
    return {
        "key": str(branch.key),
        "state": status.value,
        "messages": branch.messages,
        "bytes": branch.bytes,
        "origin": origin or None,
        "began_ms": branch.began_ms,
        "prepared_ms": branch.prepared_ms,
        "timeout_ms": timeout_ms,
        "first_lsn": branch.first_lsn,
        "partitions_total": len(branch.extents),
        "partitions": partitions,
        "first_messages": messages,
        "unreadable": unreadable,
        "decision": None,
    }


def empty_report(key: str, *, origin: str, began_ms: int, timeout_ms: int) -> Report:
    """Report on a begun branch without messages."""
    nothing = {"messages": 0, "bytes": 0, "prepared_ms": 0, "first_lsn": None, "partitions_total": 0, "decision": None}
    known = {"key": key, "state": BranchStatus.ACTIVE.value, "origin": origin or None, "began_ms": began_ms}
    return known | {"timeout_ms": timeout_ms, "partitions": [], "first_messages": []} | nothing


def decided_report(ended: HeuristicEnd) -> Report:
    """Report on a branch ended by an operator."""
    return {
        "key": ended.key,
        "state": DECIDED[ended.decision].value,
        "messages": ended.messages,
        "bytes": ended.bytes,
        "prepared_ms": ended.prepared_ms,
        "decision": {
            "decision": ended.decision.name.lower(),
            "who": ended.who,
            "why": ended.why,
            "time_ms": ended.time_ms,
        },
    }


def finding_report(finding: Finding) -> Report:
    """Report on a branch known only from the ledger."""
    state = finding.disagreement.name.lower()
    nothing = {"messages": 0, "bytes": 0, "decision": None}
    return {"key": finding.key, "state": state, **nothing, "finding": said_in(finding)}


def said_in(finding: Finding) -> Report:
    """Return author, reason, evidence and time of an entry of the ledger."""
    return {"who": finding.who, "why": finding.why, "evidence": finding.evidence, "time_ms": finding.time_ms}


def _first_messages(branch: Branch, read: ReadBody, may_read: Callable[[str], bool]) -> Iterator[Report]:
    left = MESSAGES_SHOWN
    for name, runs in branch.extents.items():
        for extent in runs:
            head = bytes(read(extent.lsn, min(extent.bytes, PEEK_BYTES)))
            at = 0
            while at + HEADER_BYTES <= len(head):
                if not left:
                    return
                length, _, message_id, flag = HEADER.unpack_from(head, at)
                at += HEADER_BYTES
                shown = _preview(flag, head[at : at + length])
                if is_hidden := not may_read(name.topic):
                    shown |= {"attribute": None, "payload": None}
                place: Report = {"topic": name.topic, "partition": name.partition, "id": message_id, "bytes": length}
                yield place | shown | {"is_hidden": is_hidden}
                at += length
                left -= 1


def _preview(flag: int, data: bytes) -> Report:
    """Return the attribute and the beginning of the payload, as far as *data* contains them; it may be cut off."""
    attribute: str | None = None
    traceparent: str | None = None
    if flag & FLAG_ATTRIBUTE:
        end = 4 + int.from_bytes(data[:4], "big")
        attribute, traceparent = split_traceparent(data[4:end].decode(errors="replace"))
        attribute, data = attribute and attribute[:PREVIEW_BYTES], data[end:]
    payload = None if codec_number(flag) else data[:PREVIEW_BYTES].decode(errors="replace")
    return {"attribute": attribute, "payload": payload} | ({"traceparent": traceparent} if traceparent else {})
