"""Members of one group as processes, each with a link to ZooKeeper of its own, and what can be done to them."""

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.crash.groups.ledger import Delivery, Incident, MemberLog, read_log
from tests.fixtures.forked import Forked, start_module
from tests.fixtures.tcp_proxy import TcpProxy
from zk.session.lease import now

GROUP, TOPIC = "fleet", "work"


@dataclass(slots=True, eq=False)
class Member:
    """One process."""

    name: str
    log: Path
    process: Forked
    link: TcpProxy
    style: str = ""  # of habits.styles; "": steady
    is_well: bool = True
    is_gone: bool = False  # killed, or left as told

    @property
    def consumer_id(self) -> str:
        return f"{GROUP}_{self.name}"


class Fleet:
    """Starts, hurts and ends members; records each incident with its member and time. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        zookeeper_port: int,
        chroot: str,
        session_ms: int,
        styles: Sequence[str] = (),
        seed: str = "",
        database: str = "",
    ) -> None:
        """*styles*: of its members, in turn, which have habits by *seed*; none: they are steady. *database*: URL of the
        store of offsets."""
        self._styles, self._seed, self._database = styles, seed, database
        self._directory = directory
        self._zookeeper_port = zookeeper_port
        self._chroot = chroot
        self._session_ms = session_ms
        self._lock = threading.Lock()  # guards the next three
        self._count = 0
        self._members: list[Member] = []
        self._incidents: list[Incident] = []

    @property
    def members(self) -> list[Member]:
        """Running members."""
        with self._lock:
            return [member for member in self._members if member.process.poll() is None]

    @property
    def incidents(self) -> list[Incident]:
        with self._lock:
            return list(self._incidents)

    def is_well(self, consumer_id: str) -> bool:
        return any(member.is_well for member in self.members if member.consumer_id == consumer_id)

    def logs(self) -> list[MemberLog]:
        """All that any member ever wrote down."""
        with self._lock:
            members = list(self._members)
        return [read_log(member.name, member.log) for member in members]

    def deliveries(self) -> list[Delivery]:
        """All that any member was ever handed."""
        return [delivery for log in self.logs() for delivery in log.deliveries]

    @property
    def everybody(self) -> list[Member]:
        """Members, those that are gone included."""
        with self._lock:
            return list(self._members)

    def note(self, began: float, member: Member | None, kind: str) -> None:
        with self._lock:
            self._incidents.append(Incident(began, now(), None if member is None else member.name, kind))

    def join(self) -> Member:
        with self._lock:
            self._count += 1
            number = self._count
            name = f"m{number:03}"
        log = self._directory / f"{name}.log"
        link = TcpProxy(self._zookeeper_port).__enter__()
        words = [f"{link.connect}{self._chroot}", GROUP, TOPIC, name, str(self._session_ms), str(log)]
        style = self._styles[number % len(self._styles)] if self._styles else ""
        words += [style, f"{self._seed}-{name}", self._database] if style else []
        with log.with_suffix(".err").open("wb") as errors:
            process = start_module("tests.crash.groups.member", *words, stdout=errors, stderr=errors)
        member = Member(name, log, process, link, style)
        with self._lock:
            self._members.append(member)
        return member

    def check_alive(self) -> None:
        """Raise AssertionError if a member has ended by itself."""
        for member in self.everybody:
            status = member.process.poll()
            assert member.is_gone or status is None, f"{member.name} ended by itself, {status}: {_last_words(member)}"

    def leave(self, member: Member) -> None:
        """Stop a member as an operator stops a service."""
        member.process.send_signal(signal.SIGTERM)
        status = member.process.wait(30)
        self._end(member)
        assert status == 0, f"{member.name} ended with {status}: {_last_words(member)}"

    def kill(self, member: Member) -> None:
        began = now()
        member.is_well = False
        self._end(member)
        self.note(began, member, "killed")

    def stop_for(self, member: Member, seconds: float) -> None:
        """SIGSTOP and SIGCONT."""
        began = now()
        member.is_well = False
        member.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        member.process.send_signal(signal.SIGCONT)
        member.is_well = True
        time.sleep(1.0)  # what it does on waking counts as well
        self.note(began, member, "stopped")

    def expire(self, member: Member) -> None:
        """End its session at the server."""
        began = now()
        member.is_well = False
        member.process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)
        member.is_well = True
        self.note(began, member, "session ended")

    def cut_for(self, member: Member, seconds: float, *, swallow: bool) -> None:
        """Cut a member's link to ZooKeeper, by silence or by refusal."""
        began = now()
        member.is_well = False
        (member.link.swallow if swallow else member.link.refuse)()
        time.sleep(seconds)
        member.link.heal()
        member.is_well = True
        time.sleep(1.0)
        self.note(began, member, "link swallowed" if swallow else "link refused")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.everybody:
            if not member.is_gone:
                self._end(member)

    @staticmethod
    def _end(member: Member) -> None:
        member.process.kill()  # one that is stopped, too
        member.process.wait()
        member.link.__exit__(None, None, None)
        member.is_gone = True


def _last_words(member: Member) -> str:
    return member.log.with_suffix(".err").read_text()[-2000:]
