"""Operator that ends abandoned branches, and the facts about that which a crash must preserve.

Its branches are its own: their coordinator prepared them and never came back. Or came back too late: then it has to be
told what was decided.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from journal.records.xid import BranchKey, XaKey, Xid
from meta_client.protocol.answers import parse_keys
from meta_client.protocol.requests import BranchCommand, BranchVerb, TransactionVerb
from tests.crash.ledger import BranchFacts, Decision, Known
from tests.crash.workload import PARTITIONS, QUALIFIER, Producer
from tests.fixtures.wire import Refused, WireClient

WHO: Final = "ann@db1"
NAMES: Final = 6  # few, so that most have served before
CODES: Final = {BranchVerb.COMMIT: 7, BranchVerb.ROLLBACK: 6, BranchVerb.COMPLETE: 8}  # what a coordinator is told
V = TransactionVerb

Decided = Mapping[BranchKey, tuple[str, str, str]]  # decision, who and why, of what nobody has forgotten


@dataclass(eq=False)
class DecisionFacts:
    """One decision, from the moment in which it is asked for."""

    branch: BranchFacts
    verb: BranchVerb
    why: str
    decided: Known = Known.ASKED
    forgotten: Known = Known.NOT_ASKED

    @property
    def is_over(self) -> bool:
        return self.forgotten is Known.TOLD

    @property
    def said(self) -> tuple[str, str, str]:
        return self.verb.value, WHO, self.why


class Operator(Producer):
    """Drives one client across all restarts of a broker, as a producer does; leaves branches in doubt, then ends them
    by hand."""

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(number, seed)
        self.decisions: list[DecisionFacts] = []

    def work(self, client: WireClient) -> None:
        """One step. Raises Refused, ConnectionError: how far it got is open then."""
        steps = [self._leave, self._leave, self._decide_by_hand, self._come_back, self._forget, self._look]
        self._random.choice(steps)(client)

    @property
    def standing(self) -> list[DecisionFacts]:
        """Decisions that no client has asked the broker to forget."""
        return [one for one in self.decisions if one.decided is Known.TOLD and one.forgotten is Known.NOT_ASKED]

    def _leave(self, client: WireClient) -> None:
        used = {branch.key for branch in self.ledger.branches if not branch.is_over}
        used |= {one.branch.key for one in self.decisions if not one.is_over}
        free = [key for n in range(NAMES) if (key := XaKey(Xid.of(f"op-{n}", "b"), QUALIFIER)) not in used]
        if not free:
            return
        branch = self._begin(client, self._random.choice(free))
        for _ in range(self._random.choice([1, 1, 2, 5])):
            name, body = self._random.choice(PARTITIONS), self._body()
            branch.puts.append((name, body))
            client.put(*name, body, branch.key)
        branch.prepared = Known.ASKED
        assert client.verb(V.PREPARE, branch.key) == b"0"
        branch.prepared = Known.TOLD

    def _decide_by_hand(self, client: WireClient) -> None:
        waiting = [branch for branch in self.ledger.branches if branch.must_be_in_doubt]
        if not waiting:
            return
        branch = self._random.choice(waiting)
        verb = self._random.choice([BranchVerb.COMMIT, BranchVerb.ROLLBACK, BranchVerb.COMPLETE])
        facts = DecisionFacts(branch, verb, f"case {len(self.decisions)}")
        self.decisions.append(facts)
        branch.decision = Decision.COMMIT if verb is BranchVerb.COMMIT else Decision.ROLLBACK
        branch.decided = Known.ASKED
        assert isinstance(branch.key, XaKey)
        answer = client.result(BranchCommand(verb, branch.key, WHO, facts.why, client.opaque()))
        if not answer.is_success:
            raise Refused(answer.text)
        branch.decided = facts.decided = Known.TOLD

    def _come_back(self, client: WireClient) -> None:
        """The coordinator, too late."""
        if not (standing := self.standing):
            return
        one = self._random.choice(standing)
        try:
            client.verb(self._random.choice([V.COMMIT_TWO_PHASE, V.ROLLBACK]), one.branch.key)
        except Refused as refused:
            if f"code={CODES[one.verb]}," not in str(refused):
                raise
        else:
            raise AssertionError(f"{one.branch.key} was decided by hand, and its coordinator was not told")

    def _forget(self, client: WireClient) -> None:
        if not (standing := self.standing):
            return
        one = self._random.choice(standing)
        one.forgotten = Known.ASKED
        client.verb(V.FORGET, one.branch.key)
        one.forgotten = Known.TOLD

    def _look(self, client: WireClient) -> None:
        """Ask for the listing, which shows whether the broker is still there."""
        client.verb(V.RECOVER, None, qualifier=QUALIFIER)


def read_listed(client: WireClient) -> tuple[set[BranchKey], Decided]:
    """List what RECOVER returns: branches in doubt, and those an operator ended."""
    keys = parse_keys(client.verb(V.RECOVER, None, qualifier=QUALIFIER))
    assert len(set(keys)) == len(keys)
    in_doubt, decided = set[BranchKey](), dict[BranchKey, tuple[str, str, str]]()
    for key in keys:
        assert isinstance(key, XaKey)
        deadline = time.monotonic() + 30
        while not (answer := client.result(BranchCommand(BranchVerb.SHOW, key, "", "", client.opaque()))).is_success:
            # A new master in mode sync, whose slaves are not all there yet.
            assert answer.text.endswith("try again later"), answer.text
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)
        report = json.loads(answer.message)
        if (decision := report["decision"]) is None:
            assert report["state"] == "prepared", report
            in_doubt.add(key)
        else:
            decided[key] = decision["decision"], decision["who"], decision["why"]
    return in_doubt, decided


def check_decisions(decisions: Iterable[DecisionFacts], in_doubt: set[BranchKey], decided: Decided) -> None:
    """Compare what the operator knows with what is listed; settles what was open. Before `ledger.check`, which settles
    the branches themselves."""
    explained: set[BranchKey] = set()
    for one in decisions:
        if one.is_over:
            continue
        key, listed = one.branch.key, decided.get(one.branch.key)
        what = f"{key} {one.verb} decided={one.decided} forgotten={one.forgotten}: {listed} is listed"
        assert listed in (None, one.said), what
        if listed is not None:
            assert key not in in_doubt, f"{what}, and it is in doubt"
            explained.add(key)
            one.decided, one.forgotten = Known.TOLD, Known.NOT_ASKED
        elif one.decided is Known.ASKED:
            assert key in in_doubt, f"{what}: neither decided nor in doubt"
            one.forgotten = Known.TOLD  # nothing came of it: nobody will ask for it again
        else:
            assert one.forgotten is Known.ASKED, what
            one.forgotten = Known.TOLD
    assert decided.keys() == explained, f"decided, and nobody did: {decided.keys() - explained}"
