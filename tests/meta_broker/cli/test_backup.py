"""`metaq backup` and `metaq restore` without ZooKeeper: what they refuse, and what scripts and people are told."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from journal.backup.copy_back import read_manifest
from journal.errors import DirectoryIsBackup
from journal.wal.storage import DirectoryStorage
from meta_broker.cli.backup import backup
from meta_broker.cli.restore import SHOWN_MAX, restore_command
from tests.fixtures.journals import ORDERS, open_store, xa

IN_DOUBT = SHOWN_MAX + 2


def run(command: object, *words: object, answer: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(command, list(map(str, words)), input=answer)  # type: ignore[arg-type]  # a command
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with branches in doubt, more than are shown."""
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    store = open_store(storage)
    for number in range(IN_DOUBT):
        branch = store.begin(xa(f"b{number}"))
        store.transactional_put(branch, ORDERS, [b"x"], 1, 1)
        store.prepare(branch)
    store.close()
    storage.close()
    return tmp_path / "data"


@pytest.fixture
def saved(data: Path) -> Path:
    status, out, _ = run(backup, data, data.with_name("saved"))
    assert (status, f"in doubt  {IN_DOUBT}" in out) == (0, True)
    return data.with_name("saved")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text("[broker]\ncluster = 'test'\n[topics.orders]\n")
    return path


def test_a_back_up_is_not_made_in_what_it_is_of(data: Path) -> None:
    before = sorted(data.iterdir())
    for target in (data, data / "saved"):
        status, _, err = run(backup, data, target)
        assert (status, f"{target} is in {data}: name a directory elsewhere" in err) == (2, True)
    assert sorted(data.iterdir()) == before


def test_a_back_up_is_not_made_beside_others(data: Path) -> None:
    others = data.with_name("others")
    (others / "monday").mkdir(parents=True)
    with pytest.raises(DirectoryIsBackup, match=r"is not empty \(monday\): name a new directory"):
        CliRunner().invoke(backup, [str(data), str(others)], catch_exceptions=False)
    assert [path.name for path in others.iterdir()] == ["monday"]


@pytest.mark.parametrize("below", [".", "monday"])
def test_a_link_that_leads_nowhere_is_named(saved: Path, data: Path, config: Path, below: str) -> None:
    """A disk that is not mounted leaves such a link."""
    link, absent = data.with_name("link"), data.with_name("disk") / "broker"
    link.symlink_to(absent)
    said = f"{link} is a symbolic link to {absent}, which is not there: make that directory .*, or name another one"
    restoring = [str(saved), str(link / below), "--config", str(config), "--accept-loss", "--yes"]
    for command, words in ((restore_command, restoring), (backup, [str(data), str(link / below)])):
        with pytest.raises(DirectoryIsBackup, match=said):
            CliRunner().invoke(command, words, catch_exceptions=False)
    absent.mkdir(parents=True)
    assert run(restore_command, *restoring)[0] == 0


def test_a_back_up_is_made_of_a_directory_whose_name_is_no_utf_8(data: Path, config: Path) -> None:
    """Copy from a disk mounted elsewhere: no broker has such a name."""
    source, saved = data.with_name("d\udcff"), data.with_name("saved")
    data.rename(source)
    assert run(backup, source, saved)[0] == 0
    assert read_manifest(DirectoryStorage.open_for_reading(saved)).source.endswith(r"/d\udcff")
    assert run(restore_command, saved, data, "--config", config, "--accept-loss", "--yes")[0] == 0


def test_scripts_get_an_object(data: Path, config: Path) -> None:
    saved = data.with_name("saved")
    status, out, _ = run(backup, data, saved, "--json")
    told = json.loads(out)
    assert (status, told["backup"], told["in_doubt"], told["cluster"]) == (0, str(saved), IN_DOUBT, "test")
    status, out, _ = run(restore_command, saved, data.with_name("new"), "--config", config, "--dry-run", "--json")
    again = json.loads(out)
    assert (status, again["backup"], again["end"], len(again["branches"])) == (1, str(saved), told["end"], IN_DOUBT)
    assert next(one["severity"] for one in again["findings"]) == "risk"
    assert again["reached"] is None


def test_people_see_the_first_branches_and_what_it_needs(saved: Path, config: Path) -> None:
    words = (restore_command, saved, saved.with_name("new"), "--config", config)
    for more, needs in (((), "not restored: needs"), (("--dry-run",), "would need")):
        status, out, err = run(*words, *more)
        assert (status, err) == (1, f"{needs} --accept-loss, for each line that says risk\n")
        assert sum(str(xa(f"b{number}")) in out for number in range(IN_DOUBT)) == SHOWN_MAX
        assert f"and 2 more: metaq txn list --dir {saved}" in out
    assert run(*words, "--dry-run", "--accept-loss")[0] == 0
    assert not saved.with_name("new").exists()


def test_declined_it_leaves_nothing(saved: Path, config: Path) -> None:
    status, _, err = run(
        *(restore_command, saved, saved.with_name("new"), "--config", config, "--accept-loss"), answer="n\n"
    )
    assert status == 1
    assert f"restore {saved} into {saved.with_name('new')} as broker 7?" in err
    assert not saved.with_name("new").exists()


def test_a_configuration_of_another_cluster_is_refused(saved: Path, config: Path) -> None:
    config.write_text("[topics.orders]\n")
    result = CliRunner().invoke(restore_command, [str(saved), str(saved.with_name("new")), "--config", str(config)])
    assert "is of cluster 'test', and the configuration of 'metaq'" in str(result.exception)
