"""The start of a consumer, when it fails."""

import threading

import pytest

from meta_client.client import Client
from tests.fixtures.consuming import QUICK, send


@pytest.mark.parametrize("nth", range(QUICK.runners + 1))
def test_a_start_that_gets_no_thread_leaves_nothing(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """A runner's, or the group's, as in a container with a limit; a ^C meanwhile raises there, too."""
    begin, left = threading.Thread.start, nth

    def start(thread: threading.Thread) -> None:
        nonlocal left
        if not left:
            raise RuntimeError("can't start new thread")
        left -= 1
        begin(thread)

    send(client, topic, 1)
    consumer = client.consumer("group", config=QUICK)
    consumer.subscribe(topic, lambda batch: None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread") as raised:
            consumer.start()
    assert raised.value.__context__ is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("metaq group ")]
    with client.consumer("group", config=QUICK) as another:
        another.subscribe(topic)
        another.start()
        assert len(another.fetch(1, timeout_s=60)) == 1
