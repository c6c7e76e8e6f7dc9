"""The session file: what its owner finds in it again, and what nobody may take from it."""

import shutil
from pathlib import Path

import pytest

from journal.errors import StorageFailed
from meta_broker.cluster import former_session as session_file
from meta_broker.cluster.former_session import FILE_NAME, SessionFile
from zk.session.security import SessionCredentials

MINE = SessionCredentials(-(2**63) + 5, bytes(range(16)))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory


def test_what_is_written_is_read_and_nobody_else_can_read_it(directory: Path) -> None:
    file = SessionFile(directory)
    assert file.read() is None
    file.write(SessionCredentials(1, bytes(16)))
    file.write(MINE)
    assert file.read() == SessionFile(directory).read() == MINE
    assert (directory / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in directory.iterdir()] == [FILE_NAME]
    file.remove()
    file.remove()
    assert file.read() is None


def test_a_leftover_of_a_crash_lends_it_no_mode(directory: Path) -> None:
    (directory / FILE_NAME).with_suffix(".tmp").touch(mode=0o666)
    SessionFile(directory).write(MINE)
    assert (directory / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", ["copy", "moved copy"])
def test_a_copied_directory_has_no_session(place: str, directory: Path, tmp_path: Path) -> None:
    SessionFile(directory).write(MINE)
    shutil.copytree(directory, tmp_path / "copy")
    copy = tmp_path / "copy"
    if place == "moved copy":  # to where the original was
        directory.rename(tmp_path / "original")
        copy = copy.rename(directory)
    assert SessionFile(copy).read() is None


def test_a_session_is_over_after_a_reboot(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SessionFile(directory).write(MINE)
    another_boot = tmp_path / "boot_id"
    another_boot.write_text("6b7e6d7e-0000-0000-0000-000000000000\n")
    monkeypatch.setattr(session_file, "_BOOT_ID", another_boot)
    assert SessionFile(directory).read() is None
    monkeypatch.setattr(session_file, "_BOOT_ID", tmp_path / "absent")  # a system that has none
    SessionFile(directory).write(MINE)
    assert SessionFile(directory).read() is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"session_id"', b'"session"'),
        (b"{", b"[" * 10_000),
        (b'"password":"00', b'"password":"0g'),
        (b'"password":"00', b'"password":"'),
        (b'"session_id":-', b'"session_id":-9'),
        (b'"session_id":-9223372036854775803', b'"session_id":"1"'),
        (b"\n", b"{}\n"),
        (b'"place":"', b'"place":"\xff'),
    ],
)
def test_damage_means_no_session(old: bytes, new: bytes, directory: Path) -> None:
    file = SessionFile(directory)
    file.write(MINE)
    content = (directory / FILE_NAME).read_bytes()
    assert content.count(old) == 1
    (directory / FILE_NAME).write_bytes(content.replace(old, new))
    assert file.read() is None
    (directory / FILE_NAME).write_bytes(b"")
    assert file.read() is None


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / FILE_NAME).mkdir()
    with pytest.raises(StorageFailed, match="zookeeper-session: Is a directory: a restart will wait"):
        SessionFile(directory).write(MINE)
