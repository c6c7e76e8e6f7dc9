"""MetaQ's own Java client, driven by lines: a JVM with actors, each a thread with a session factory of its own."""

import base64
import itertools
import queue
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from zk.embedded.java import java_home

MADE: Final = Path(__file__).parents[2] / "build/genuine"  # by `make genuine`
ANSWER_S: Final = 90.0
SUCCESS, FAIL, NO_FLAGS = 0x4000000, 0x20000000, 0  # of javax.transaction.xa.XAResource


class JavaError(Exception):
    """An exception of the client. *code* is that of an XAException."""

    def __init__(self, kind: str, code: int | None, text: str) -> None:
        super().__init__(f"{kind} {text}")
        self.kind, self.code, self.text = kind, code, text


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a Java listener got."""

    actor: str
    topic: str
    partition: str
    message_id: int
    attribute: str | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """Success of a send."""

    partition: str
    offset: int
    message_id: int


class SendRefused(Exception):
    """A result of a send that is no success."""


class JavaProcess:
    """A JVM with the client. A context manager; its actors' names are its own."""

    def __init__(self, home: Path, log: Path) -> None:
        command = [str(java_home() / "bin/java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # Of one process, it would hide what two members of a group get both.
        command += ["-Dmetaq.consumer.message_ids.lru_cache.size=1", f"-Duser.home={home}"]
        command += ["-cp", f"{MADE}/classes:{MADE}/jars/*", "Driver"]
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=home
        )
        self._answers: dict[str, queue.SimpleQueue[list[str]]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.deliveries: list[Delivery] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, *words = line.decode().rstrip("\n").split("\t")
            if number == "-":
                actor, topic, partition, message_id, attribute, payload = words
                self.deliveries.append(
                    Delivery(
                        actor,
                        topic,
                        partition,
                        int(message_id),
                        None if attribute == "-" else attribute,
                        base64.b64decode(payload),
                    )
                )
            else:
                self._answers.pop(number).put(words)

    def begin(self, actor: str, verb: str, *words: str) -> Callable[[], list[str]]:
        """Have *actor* do it; the function returned waits for its results. Raises JavaError."""
        answers: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        assert self._process.stdin is not None
        with self._lock:
            number = str(next(self._numbers))
            self._answers[number] = answers
            self._process.stdin.write("\t".join((number, actor, verb, *words)).encode() + b"\n")
            self._process.stdin.flush()

        def result() -> list[str]:
            outcome, *told = answers.get(timeout=ANSWER_S)
            if outcome == "error":
                kind, code, text = told
                raise JavaError(kind, int(code) if code else None, text)
            return told

        return result

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            pipe.close()


class Actor:
    """A service in a JVM: one session factory, by default with ZooKeeper."""

    def __init__(self, java: JavaProcess, name: str) -> None:
        self._java, self.name = java, name

    def ask(self, verb: str, *words: object) -> list[str]:
        return self.begin(verb, *words)()

    def begin(self, verb: str, *words: object) -> Callable[[], list[str]]:
        return self._java.begin(self.name, verb, *map(str, words))

    def send(
        self, topic: str, payload: bytes, *, attribute: str = "-", partition: str = "", verb: str = "send"
    ) -> Sent:
        """Send and wait. Raises JavaError, and SendRefused for a result that is no success."""
        outcome, *told = self.ask(verb, topic, base64.b64encode(payload).decode(), attribute, partition)
        if outcome == "refused":
            raise SendRefused(told[0])
        return Sent(told[0], int(told[1]), int(told[2]))

    def get(self, topic: str, partition: str, offset: int, size: int = 1 << 20) -> list[bytes]:
        return [base64.b64decode(word) for word in self.ask("get", topic, partition, offset, size)]

    def browse(self, topic: str) -> list[bytes]:
        return [base64.b64decode(word) for word in self.ask("browse", topic)]

    def subscribe(
        self, group: str, topic: str, *settings: object, size: int = 1 << 20, as_id: str | None = None
    ) -> str:
        """Join *group*; returns the id it has there."""
        as_id = as_id or self.name
        self.ask("subscribe", group, as_id, topic, size, *settings)
        return f"{group}_{as_id}"

    @property
    def deliveries(self) -> list[Delivery]:
        return [it for it in self._java.deliveries if it.actor == self.name]

    @property
    def payloads(self) -> list[bytes]:
        return [it.payload for it in self.deliveries]
