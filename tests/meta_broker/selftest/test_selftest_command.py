"""`metaq selftest` on real directories: the disk of the tests, memory, and what can't be written."""

import json
from pathlib import Path

from meta_broker.selftest.disk_test import measure_disk
from meta_broker.selftest.machine import read_clock
from tests.fixtures.forked import run_metaq
from tests.fixtures.small_disk import small_disk


def test_the_report_has_what_was_measured_and_nothing_is_left(tmp_path: Path) -> None:
    done = run_metaq("selftest", str(tmp_path), "--seconds", "0.2", "--json")
    report = json.loads(done.stdout)
    bad = [one for one in report["findings"] if one["severity"] in ("bad", "unknown")]
    assert done.returncode == (1 if bad else 0), done.stdout + done.stderr
    times = report["fsync_4k_s"]
    assert 0 < times["p50"] <= times["p95"] <= times["p99"] <= times["max"]
    assert times["count"] >= 10
    assert report["mount"]["kind"]
    assert report["expect"]["one_by_one"] > 0
    assert list(tmp_path.iterdir()) == []
    text = run_metaq("selftest", str(tmp_path), "--seconds", "0.1").stdout
    assert "median" in text
    assert "expect" in text.splitlines()[-1]


def test_memory_is_no_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64m"):
        done = run_metaq("selftest", str(tmp_path / "disk"), "--seconds", "0.1")
        assert done.returncode == 1
        assert f"tmpfs at {tmp_path / 'disk'} is memory" in done.stdout
        assert not any((tmp_path / "disk").iterdir())


def test_a_disk_without_room_is_an_error_and_left_as_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m"):
        done = run_metaq("selftest", str(tmp_path / "disk"), "--seconds", "0.1")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{tmp_path / 'disk'}: No space left on device" in done.stderr
        assert not any((tmp_path / "disk").iterdir())
    assert run_metaq("selftest", str(tmp_path / "absent")).returncode == 2


def test_each_step_is_told(tmp_path: Path) -> None:
    steps: list[str] = []
    report = measure_disk(tmp_path, 0.05, steps.append)
    assert report.reads_back in (True, None)
    assert steps[0] == "mounts"
    assert len(steps) == 6


def test_the_kernel_says_whether_its_clock_is_kept_or_that_it_cannot() -> None:
    state = read_clock()
    assert (state.error_s is not None) is (state.is_synchronized is True)
