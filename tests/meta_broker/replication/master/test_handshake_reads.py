"""Ways to start a slave where there is little: no bytes in common, no checkpoint that reads back."""

from pathlib import Path

import pytest

from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.state.wall_clock import wall_clock_ms
from journal.wal.storage import DirectoryStorage
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.replication.link_protocol import LinkRefused
from meta_broker.replication.master.handshake import PROOF_BYTES_MAX
from meta_broker.replication.master.handshake_reads import _newest_checkpoint, proof_place
from meta_broker.store.message_store import MessageStore


def test_the_proof_is_what_both_have_before_the_divergence(tmp_path: Path) -> None:
    config = BrokerConfig(data=tmp_path, broker_id=0, port=0)
    store = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
    try:
        journal = store.journal
        store.transactions.put(PartitionName("orders", 0), [bytes(9000)], 9000, 1)
        journal.wait_flushed(journal.end, 60)
        assert proof_place(journal, journal.start_lsn, 0) is None
        assert proof_place(journal, Lsn(5000), 5000) is None
        assert proof_place(journal, Lsn(5000), 4990) == (4990, 10, 0)
        assert proof_place(journal, Lsn(5000), 0) == (5000 - PROOF_BYTES_MAX, PROOF_BYTES_MAX, 0)
    finally:
        store.close()


def test_without_a_checkpoint_that_reads_back_the_remedy_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.1").write_bytes(b"damaged")
    with pytest.raises(LinkRefused, match="has no checkpoint that reads back: run `metaq checkpoint` on the master"):
        _newest_checkpoint(DirectoryStorage.open_for_reading(tmp_path))
