"""A master in mode sync shows after a start only what was acknowledged for certain, until a slave has the rest."""

from pathlib import Path

from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.wire import WireClient

NO_CHECKPOINTS = CONFIG.replace("checkpoint_seconds = 2.0", "checkpoint_seconds = 1000.0")
SYNC = NO_CHECKPOINTS + '\n[replication]\nmode = "sync"\n'


def seen(broker: BrokerProcess, partition: int) -> list[bytes]:
    with WireClient(broker.port) as client:
        return [message.payload for _, message in client.read_all("orders", partition)]


def test_what_stands_behind_the_newest_checkpoint_waits_for_slaves(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=NO_CHECKPOINTS) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"one")
        assert broker.stop() == 0  # with a checkpoint
        broker.start()
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"two")
            client.put("orders", 1, b"three")
        broker.kill()
        broker.config_path.write_text(SYNC)
        broker.start()
        assert seen(broker, 0) == [b"one"]
        assert seen(broker, 1) == []
        assert broker.stop() == 0  # without one: nobody has what is here
        broker.start()
        assert seen(broker, 0) == [b"one"]
        broker.kill()
        broker.config_path.write_text(SYNC + 'without_slaves = "degrade"\n')
        broker.start()
        assert (seen(broker, 0), seen(broker, 1)) == ([b"one", b"two"], [b"three"])
