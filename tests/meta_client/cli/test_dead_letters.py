"""`metaq groups dead-letters list`: what scripts read."""

import json
from pathlib import Path

from click.testing import CliRunner

from meta_client.cli.dead_letters import list_dead_letters
from meta_client.consumer.dead_letters.store import DeadLetterStore
from meta_client.consumer.messages.received_message import ReceivedMessage
from zk.tree.nodes import Partition


def test_scripts_get_texts_and_bytes_each_in_its_own_form(tmp_path: Path) -> None:
    store = DeadLetterStore.open(tmp_path, "billing")
    for number, payload in enumerate((b"text", b"\xff")):
        store.add(
            ReceivedMessage("orders", Partition(0, 3), number * 100, number, 0, None, payload, number * 100 + 100),
            OSError(),
        )
    store.close()
    done = CliRunner().invoke(list_dead_letters, [str(tmp_path), "--json"], catch_exceptions=False)
    text, octets = map(json.loads, done.stdout.splitlines())
    assert (text["payload"], octets["payload_base64"]) == ("text", "/w==")
    assert "payload" not in octets
