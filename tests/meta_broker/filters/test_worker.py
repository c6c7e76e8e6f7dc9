"""A filter's process, without its pipe: what is loaded, and verdicts on chunks of any bytes."""

from pathlib import Path

import pytest

from meta_broker.filters.worker import evaluate, load
from meta_client.protocol.messages import encode_frame
from tests.fixtures.filters import install_filters

FRAMES = [encode_frame(number, 0, b"%d:" % number) for number in range(4)]
ENDS = [sum(map(len, FRAMES[: number + 1])) for number in range(4)]


def test_what_is_installed_is_loaded_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install_filters(tmp_path / "site", monkeypatch)))
    assert evaluate(load("test-even"), "g", FRAMES[0] + FRAMES[1]) == ([(ENDS[0], True), (ENDS[1], False)], "")
    with pytest.raises(LookupError, match="no installed package has an entry point 'unknown'"):
        load("unknown")
    with pytest.raises(TypeError, match="is neither a function accept"):
        load("test-not_callable")


def test_a_message_that_cannot_be_read_is_its_readers_and_half_of_one_nobodys() -> None:
    strange = FRAMES[0] + encode_frame(1, 1, b"\0") + FRAMES[2]  # its attribute is longer than it
    verdicts, raised = evaluate(lambda group, message: False, "g", strange)
    assert ([accepted for _, accepted in verdicts], verdicts[-1][0], raised) == ([False, True, False], len(strange), "")
    damaged = bytearray(b"".join(FRAMES))
    damaged[ENDS[1] - 1] ^= 1
    assert evaluate(lambda group, message: True, "g", bytes(damaged))[0] == [(ENDS[0], True)]
    assert evaluate(lambda group, message: True, "g", FRAMES[0] + FRAMES[1][:-1])[0] == [(ENDS[0], True)]
    endless = FRAMES[0] + b"\xff" * 40
    assert evaluate(lambda group, message: True, "g", endless)[0] == [(ENDS[0], True)]
