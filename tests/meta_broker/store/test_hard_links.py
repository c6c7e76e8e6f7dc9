"""A copy of a directory by links (`cp -al`), on which another broker starts: neither changes what the other has."""

import subprocess
from pathlib import Path

from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.wire import WireClient

COUNT = 1500  # index entries: two chunks, and some


def test_a_copy_by_links_and_its_original_do_not_share_what_they_write(tmp_path: Path) -> None:
    with running_broker(tmp_path / "original", None) as original:
        put(original, b"before")
        original.stop()
        subprocess.run(["cp", "-al", str(original.data), str(tmp_path / "copy")], check=True)
        original.start()
        with running_broker(tmp_path / "copy", None, config=CONFIG) as copy:
            for number in range(COUNT):
                put(original, b"original-%d" % number)
                put(copy, b"copy-%d" % number)
            for broker, name in ((original, b"original"), (copy, b"copy")):
                broker.stop()  # with a checkpoint, and an index file
                broker.start()
                with WireClient(broker.port) as client:
                    stored = [message.payload for _, message in client.read_all("orders", 0)]
                assert stored == [b"before", *(b"%b-%d" % (name, number) for number in range(COUNT))]


def put(broker: BrokerProcess, body: bytes) -> None:
    with WireClient(broker.port) as client:
        client.put("orders", 0, body)
