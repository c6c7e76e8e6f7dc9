"""Checks a whole journal: that every record reads back, and that every checkpoint equals the fold of the records below
it.

Recovery reads from the newest checkpoint on; this reads everything. Pure over Segments opened for reading and
checkpoints read before them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from journal.errors import InvalidContent, InvalidRecord
from journal.records.codec import decode
from journal.records.dead_letters import DeadLetter
from journal.records.header import Lsn
from journal.records.outcomes import FinishedBranch
from journal.records.record import Decision, DroppedRecords, Forget
from journal.records.states import BranchState
from journal.records.topic_changes import describe_change
from journal.records.xid import BranchKey
from journal.repair.damage import Damage, assess
from journal.state.checkpoint import Checkpoint, state_of
from journal.state.fold import apply
from journal.state.inspection import RecordReader
from journal.state.journal_state import JournalState
from journal.wal.scan import EndVerdict, ScannedRecord, Scanner
from journal.wal.segments import SEGMENT_HEADER_BYTES, JournalIdentity, Segments

PROGRESS_BYTES = 1 << 20  # between two calls of *on_progress*


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One checkpoint file and its problems. *compared* False: the records to compare it with are gone, or do not read
    back."""

    number: int
    lsn: Lsn | None
    compared: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of a check. *end*: end of the good records; *records* and *bytes* count those."""

    identity: JournalIdentity
    segments: int
    start: Lsn
    end: Lsn
    records: int
    bytes: int
    verdict: EndVerdict
    reason: str
    next_valid_lsn: Lsn | None
    contradiction: str | None  # the first record that cannot follow those before it
    checkpoints: list[CheckedFile]
    prepared: list[BranchKey]
    active: list[BranchKey]
    decided: list[BranchKey]  # in a coordinator's journal: decisions that are not forgotten
    damage: Damage
    dropped: list[tuple[Lsn, Lsn]]  # ranges that a repair dropped; the records after them read back

    @property
    def is_sound(self) -> bool:
        """True if the journal is whole or has only a torn tail, and nothing contradicts anything."""
        return (
            self.verdict is not EndVerdict.CORRUPT
            and self.contradiction is None
            and not any(file.problems for file in self.checkpoints)
        )


def check(
    segments: Segments,
    checkpoints: dict[int, Checkpoint | InvalidContent],
    on_progress: Callable[[int], None] = lambda lsn: None,
) -> CheckReport:
    """Read every record of *segments* and compare *checkpoints* with their fold.

    *checkpoints* must have been read before the segments were opened. Calls *on_progress* with the LSN reached.
    """
    audit = _CheckedFold(segments.start, checkpoints)
    reading = RecordReader(Scanner(segments, segments.start))
    told = 0
    for entry in reading:
        if entry.header.lsn >= told:
            on_progress(entry.header.lsn)
            told = entry.header.lsn + PROGRESS_BYTES
        audit.add(entry)
    end = reading.end
    audit.compare_up_to(end.end)
    verdict, reason, damage = end.verdict, end.reason, Damage()
    if audit.pending and verdict is not EndVerdict.CORRUPT:
        number, checkpoint = audit.pending[0]
        verdict = EndVerdict.CORRUPT
        reason = f"{reason}, but checkpoint.{number} was taken at LSN {checkpoint.lsn}"
    if verdict is EndVerdict.CORRUPT:
        damage = assess(segments, end, audit.state, audit.pending[-1][1] if audit.pending else None)
    for number, checkpoint in audit.pending:
        audit.files[number] = CheckedFile(number, Lsn(checkpoint.lsn), False, ())
    on_progress(segments.end)
    live = list(audit.state.branches.values()) if audit.state else []
    return CheckReport(
        identity=segments.identity,
        segments=len(segments),
        start=segments.start,
        end=end.end,
        records=audit.records,
        bytes=audit.bytes,
        verdict=verdict,
        reason=reason,
        next_valid_lsn=end.next_valid_lsn,
        contradiction=audit.contradiction,
        checkpoints=[file for _, file in sorted(audit.files.items())],
        prepared=[branch.key for branch in live if branch.state is BranchState.PREPARED],
        active=[branch.key for branch in live if branch.state is not BranchState.PREPARED],
        decided=list(audit.decided),
        damage=damage,
        dropped=audit.dropped,
    )


class _CheckedFold:
    """Fold of the records so far, compared with each checkpoint when its LSN is passed."""

    def __init__(self, start: Lsn, checkpoints: dict[int, Checkpoint | InvalidContent]) -> None:
        self.records = 0
        self.bytes = 0
        self.contradiction: str | None = None
        self.decided: dict[BranchKey, None] = {}
        self.dropped: list[tuple[Lsn, Lsn]] = []
        self.files: dict[int, CheckedFile] = {}
        # A journal whose first segments were dropped can be folded from its oldest checkpoint on.
        self.state = JournalState(start) if start == SEGMENT_HEADER_BYTES else None
        self.pending: list[tuple[int, Checkpoint]] = []  # not reached yet, by LSN
        for number, found in checkpoints.items():
            if isinstance(found, InvalidContent):
                self.files[number] = CheckedFile(number, None, False, (f"does not read back: {found}",))
            elif found.lsn < start:
                self.files[number] = CheckedFile(number, Lsn(found.lsn), False, ())
            else:
                self.pending.append((number, found))
        self.pending.sort(key=lambda item: item[1].lsn)

    def add(self, entry: ScannedRecord) -> None:
        header = entry.header
        self.compare_up_to(header.lsn)
        self.records += 1
        self.bytes += header.bytes_total
        try:
            record = decode(header, entry.meta)
            match record:
                case Decision(key, _):
                    self.decided[key] = None
                case DeadLetter():
                    pass  # a consumer's own journal: each record stands for itself
                case Forget(key) if self.state is None or not self._is_known(key):
                    self.decided.pop(key, None)
                case _:
                    if record == DroppedRecords():
                        self.dropped.append((header.lsn, header.end))
                    if self.state is not None:
                        apply(self.state, header, record)
        except InvalidRecord as error:
            # Later records cannot be folded any more, but their checksums are still checked.
            self.contradiction = self.contradiction or str(error)
            self.state = None

    def _is_known(self, key: BranchKey) -> bool:
        state = self.state
        return state is not None and (key in state.heuristics or state.ledger.find(str(key)) is not None)

    def compare_up_to(self, lsn: int) -> None:
        """Compare the checkpoints with an LSN up to *lsn* with the fold."""
        while self.pending and self.pending[0][1].lsn <= lsn:
            number, checkpoint = self.pending.pop(0)
            known = self.state if self.state is not None and self.state.unresolved_loss is None else None
            problems = tuple(differences(known, checkpoint)) if known is not None else ()
            self.files[number] = CheckedFile(number, Lsn(checkpoint.lsn), known is not None, problems)
            if known is None and self.contradiction is None:  # after dropped records a checkpoint knows more
                self.state = state_of(checkpoint)


def differences(state: JournalState, checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a line for each difference between *checkpoint* and *state*, the fold of every record below its LSN.

    Index entries and first offsets are not compared, since the records do not contain them.
    """
    if state.lsn > checkpoint.lsn:
        yield f"LSN {checkpoint.lsn} is inside a record that ends at {state.lsn}"
    told = state_of(checkpoint)
    for what in ("epoch", "incarnation", "time_ms"):
        if getattr(told, what) != getattr(state, what):
            yield f"{what} {getattr(told, what)}, the records say {getattr(state, what)}"
    for name in sorted(told.offset_ranges.keys() | state.offset_ranges.keys()):
        if told.end_of(name) != state.end_of(name):
            yield f"{name} ends at {told.end_of(name)}, the records say {state.end_of(name)}"
    mine_batches, their_batches = dict(state.producers), dict(told.producers)
    for window in sorted(mine_batches.keys() | their_batches.keys()):
        if mine_batches.get(window) != their_batches.get(window):
            producer, topic, partition = window
            yield f"the batches of producer {producer} to {topic}-{partition} are not those of the records"
    mine_ended, their_ended = ({ended.key: ended for ended in one.outcomes} for one in (state, told))
    for name_of in sorted(mine_ended.keys() | their_ended.keys()):
        mine_end, their_end = mine_ended.get(name_of), their_ended.get(name_of)
        if mine_end != their_end:
            yield f"the outcome of {name_of} is {_ending(their_end)}, the records say {_ending(mine_end)}"
    for decided in sorted(told.heuristics.keys() | state.heuristics.keys()):
        if told.heuristics.get(decided) != state.heuristics.get(decided):
            yield f"the operator's decision about {decided} is not that of the records"
    mine_found, their_found = ({finding.key: finding for finding in one.ledger} for one in (state, told))
    for found in sorted(mine_found.keys() | their_found.keys()):
        if mine_found.get(found) != their_found.get(found):
            yield f"the ledger's entry about {found} is not that of the records"
    for topic in sorted(told.topics.keys() | state.topics.keys()):
        if told.topics.get(topic) != state.topics.get(topic):
            yield f"topic {topic} is {_decided(told, topic)}, the records say {_decided(state, topic)}"
    mine_epochs, their_epochs = (
        [writer_epoch for writer_epoch in one.epoch_history if writer_epoch.lsn] for one in (state, told)
    )
    known = min(len(mine_epochs), len(their_epochs))  # an older metaq stored none, and old ones may be dropped
    if mine_epochs[len(mine_epochs) - known :] != their_epochs[len(their_epochs) - known :]:
        yield "the lives of the journal are not those of the records"
    for lsn in sorted(told.branches.keys() | state.branches.keys()):
        mine, theirs = state.branches.get(lsn), told.branches.get(lsn)
        if mine is None or theirs is None:
            key = (mine or theirs or told.branches[lsn]).key
            yield f"branch {key} from LSN {lsn} is {'missing' if theirs is None else 'not live in the records'}"
        elif (mine.key, mine.state, mine.decision, mine.began_ms, mine.prepared_ms, mine.extents) != (
            theirs.key,
            theirs.state,
            theirs.decision,
            theirs.began_ms,
            theirs.prepared_ms,
            theirs.extents,
        ):
            yield (
                f"branch {theirs.key} from LSN {lsn} is {theirs.state.name} with {theirs.messages} messages of "
                f"{theirs.bytes} bytes, the records say {mine.key} {mine.state.name}, {mine.messages} of {mine.bytes}"
            )


def _ending(ended: FinishedBranch | None) -> str:
    return "unknown" if ended is None else f"{ended.outcome} at {ended.time_ms}"


def _decided(state: JournalState, topic: str) -> str:
    change = state.topics.get(topic)
    return "as the file says" if change is None else describe_change(change)
