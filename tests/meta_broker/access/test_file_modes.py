"""What programs write is for their user alone, whatever the umask of who starts them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_broker.cli.backup import backup
from meta_broker.cli.restore import restore_command
from meta_client.consumer.dead_letters.store import DeadLetterStore
from meta_client.consumer.offset_stores.local_file import LocalOffsetStore
from meta_client.coordinator.decision_log import DecisionLog
from tests.fixtures.broker import running_broker
from tests.fixtures.wire import WireClient


@pytest.fixture
def generous() -> Iterator[None]:
    """The umask of a user who shares everything."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def readable_by_others(*places: Path) -> dict[str, str]:
    modes = {path: path.stat().st_mode & 0o777 for place in places for path in (place, *place.rglob("*"))}
    assert len(modes) > len(places), "directories hold something"
    return {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077}


@pytest.mark.usefixtures("generous")
def test_what_services_keep_is_for_their_user_alone(tmp_path: Path) -> None:
    decisions, letters, offsets = (tmp_path / name for name in ("decisions", "letters", "offsets"))
    DecisionLog.open(decisions, "shop").close()
    DeadLetterStore.open(letters, "billing").close()
    LocalOffsetStore.open(offsets, "billing").close()
    assert readable_by_others(decisions, letters, offsets) == {}


def test_a_directory_that_others_may_change_is_told(tmp_path: Path) -> None:
    """They may put symbolic links there, which lead what the broker writes elsewhere."""
    for mode, is_told in ((0o777, True), (0o775, True), (0o755, False)):
        data = tmp_path / f"{mode:o}"
        data.mkdir()
        data.chmod(mode)
        with running_broker(data, None) as broker:
            assert (f"others may change this directory path={data}" in broker.log) is is_told


def test_back_ups_and_what_is_restored_are_for_their_user_alone(tmp_path: Path, generous: None) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"m")
        backup.main([str(broker.data), str(tmp_path / "backup")], standalone_mode=False)
    words = ["--accept-loss", "--yes", "--config", str(broker.config_path)]
    restore_command.main([str(tmp_path / "backup"), str(tmp_path / "restored"), *words], standalone_mode=False)
    assert readable_by_others(broker.data, tmp_path / "backup", tmp_path / "restored") == {}
