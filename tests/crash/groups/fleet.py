"""Members of one group as processes, each with a link to ZooKeeper of its own, and what can be done to them."""

import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.crash.groups.ledger import Delivery, Incident, read_deliveries
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
    is_well: bool = True

    @property
    def consumer_id(self) -> str:
        return f"{GROUP}_{self.name}"


class Fleet:
    """Starts, hurts and ends members; records each incident with its member and time. Thread-safe."""

    def __init__(self, directory: Path, zookeeper_port: int, chroot: str, session_ms: int) -> None:
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

    def deliveries(self) -> list[Delivery]:
        """All that any member was ever handed."""
        with self._lock:
            members = list(self._members)
        return [delivery for member in members for delivery in read_deliveries(member.name, member.log)]

    def note(self, began: float, member: Member | None, kind: str) -> None:
        with self._lock:
            self._incidents.append(Incident(began, now(), None if member is None else member.name, kind))

    def join(self) -> Member:
        with self._lock:
            self._count += 1
            name = f"m{self._count:03}"
        log = self._directory / f"{name}.log"
        link = TcpProxy(self._zookeeper_port).__enter__()
        words = (f"{link.connect}{self._chroot}", GROUP, TOPIC, name, str(self._session_ms), str(log))
        with log.with_suffix(".err").open("wb") as errors:
            process = start_module("tests.crash.groups.member", *words, stdout=errors, stderr=errors)
        member = Member(name, log, process, link)
        with self._lock:
            self._members.append(member)
        return member

    def leave(self, member: Member) -> None:
        """Stop a member as an operator stops a service."""
        member.process.send_signal(signal.SIGTERM)
        status = member.process.wait(30)
        member.link.__exit__(None, None, None)
        assert status == 0, f"{member.name} ended with {status}: {member.log.with_suffix('.err').read_text()[-2000:]}"

    def kill(self, member: Member) -> None:
        began = now()
        member.is_well = False
        member.process.kill()
        member.process.wait()
        member.link.__exit__(None, None, None)
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
        for member in self.members:
            member.process.kill()  # one that is stopped, too
            member.process.wait()
            member.link.__exit__(None, None, None)
