"""Options that take a number: what no command could act on is refused in one line, before anything is asked."""

import sys
from collections.abc import Callable, Iterator

import click
import pytest

from meta_client.cli.main import main, metaq
from meta_client.operations.option_types import Seconds

Run = Callable[..., tuple[int, str]]
TIMES = (
    ("produce orders --timeout", "0.001"),
    ("console --age", "0"),
    ("txn doctor --age", "0"),
    ("txn resolver --database sqlite:// --age", "0"),
    ("txn resolver --database sqlite:// --interval", "0.05"),
)
COUNTS = (
    *("consume orders --count", "find orders --key a --limit", "journal dump / --limit", "journal dump / --from"),
    *("dev --port", "dev --zk-port", "txn init --keep-hours", "reconcile --limit"),
)
CHECKED_BY_BROKERS = frozenset({"port", "broker_id", "slave_id", "processes", "partitions"})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `metaq` in this process, without a ZooKeeper. Returns the status and what stderr got."""

    def run_here(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["metaq", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capfd.readouterr().err

    return run_here


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "1e7", "1e400", "ten", "", "9" * 5000])
@pytest.mark.parametrize(("words", "low"), TIMES)
def test_a_time_is_a_number_of_seconds_in_bounds(run: Run, words: str, low: str, value: str) -> None:
    status, error = run(*words.split(), value)
    option = words.rpartition(" ")[2]
    assert (status, error.count("\n")) == (2, 1), error
    assert error.startswith(
        f"error: Invalid value for '{option}': {value} is not a number of seconds from {low} to 1000000: see `metaq "
    )


def test_a_wait_for_members_is_one_too(run: Run) -> None:
    for value in ("nan", "-1", "1e7", ""):
        status, error = run("groups", "reset", "billing", "--to", "latest", "--members", f"wait:{value}")
        assert (status, error.count("\n")) == (2, 1)
        assert f"'--members': {value} is not a number of seconds from 0 to 1000000" in error


@pytest.mark.parametrize("words", COUNTS)
def test_a_number_beyond_what_there_can_be_is_refused(run: Run, words: str) -> None:
    for value in ("1" + "0" * 30, "9" * 5000, "-1", "nan"):
        status, error = run(*words.split(), value)
        assert (status, error.count("\n")) == (2, 1), error
        assert error.startswith(f"error: Invalid value for '{words.rpartition(' ')[2]}': ")


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def test_every_option_with_a_number_has_bounds() -> None:
    found = set()
    for path, command in commands(metaq, "metaq"):
        for option in command.params:
            kind = option.type
            assert not isinstance(kind, click.types.FloatParamType), f"{path} {option.name}: use Seconds"
            if isinstance(kind, click.types.IntParamType) and option.name not in CHECKED_BY_BROKERS:
                assert isinstance(kind, click.IntRange), f"{path} {option.name}"
                assert kind.min is not None
                assert kind.max is not None, f"{path} {option.name}"
            elif isinstance(kind, Seconds):
                found.add(f"{path} --{option.name}")
    assert {"metaq produce --timeout_s", "metaq selftest --seconds", "metaq txn resolver --interval_s"} <= found
