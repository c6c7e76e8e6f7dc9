"""`metaq`: looks up commands of every installed package and prints errors as one line.

Commands are entry points of the group `metaq.commands`, loaded on use: `metaq --help` imports none of them, and a
package adds a command without being imported by another.
"""

import contextlib
import os
import signal
import sys
import traceback
from importlib.metadata import distribution, entry_points
from types import FrameType
from typing import Any, Final

import click

from journal.errors import JournalError
from meta_client.core import description
from meta_client.operations.text import tell
from meta_client.protocol.errors import MetaError, one_line
from zk.errors import ZooKeeperError

GROUP: Final = "metaq.commands"
DISTRIBUTION: Final = "metaq-broker"
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
TERMINATED: Final = 143  # 128 + SIGTERM

# Help texts of `metaq --help`, in a user's order. Kept here so that help imports nothing.
SUMMARIES: Final = {
    "demo": "The main job, end to end, with three kills.",
    "dev": "Run ZooKeeper and a broker for development.",
    "broker": "Run a broker.",
    "promote": "Make a stopped slave the master.",
    "adopt": "Let a directory start with a ZooKeeper that lost its data, or is another cluster's.",
    "console": "A web page: brokers, transactions, messages, groups, replication, journals.",
    "brokers": "Masters and slaves: which follows which, how far, and which are in sync.",
    "zookeeper": "Run a ZooKeeper for development.",
    "produce": "Send lines as messages.",
    "consume": "Show messages.",
    "find": "Find messages by key, by id, or from a time on.",
    "topics": "List, create, alter, close, open and delete topics.",
    "offsets": "Where a topic's partitions begin and end, and where they were at a time.",
    "groups": "List consumer groups, owners and lag; set a group to other offsets.",
    "txn": "What is in doubt, and how to end it by hand.",
    "outbox": "Messages as rows of your database, and the relay that moves them to brokers.",
    "doctor": "Examine the cluster's nodes in ZooKeeper, and repair metaq's own.",
    "access": "Principals that brokers know, and what each may do.",
    "checkpoint": "Have a checkpoint written now, live or offline.",
    "selftest": "Examine a disk and a machine before a broker is put there.",
    "backup": "Copy the directory of a running broker, consistent and verified.",
    "restore": "Make a broker's directory of a back-up, with offsets that were never given out.",
    "journal": "Read a broker's log offline: dump, check, truncations; and repair it.",
    "audit": "Prove with Spark that nothing was lost or doubled.",
    "certify": "Certify that a database and brokers agree, transaction by transaction, signed.",
    "reconcile": "List what a restored database or broker has pulled apart, and the commands that mend it.",
    "version": "Show what runs here: metaq, its core, Python, packages.",
}


class Failure(click.ClickException):
    """An error for the user: one line, exit status 2."""

    exit_code = 2


class ReaderGone(Exception):
    """Standard output was closed. Not an OSError, which click would turn into exit status 1."""


class Commands(click.Group):
    """The commands of every installed package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        names = {point.name for point in entry_points(group=GROUP)}
        return [name for name in SUMMARIES if name in names] + sorted(names - SUMMARIES.keys())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        # metaq's own first: to read the entry points of every installed package takes longer than many a command.
        own = distribution(DISTRIBUTION).entry_points.select(group=GROUP, name=cmd_name)
        found = next(iter(own or entry_points(group=GROUP, name=cmd_name)), None)
        if found is None:
            return None
        try:
            command = found.load()
        except ModuleNotFoundError as error:
            raise Failure(
                f"metaq {cmd_name} needs the package {error.name}, which is not installed: "
                "pip install 'metaq-broker[demo]'"
            ) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUMMARIES.get(name, "")) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (JournalError, ZooKeeperError, MetaError) as error:
            raise Failure(one_line(error)) from error
        except BrokenPipeError as error:
            raise ReaderGone from error
        except OSError as error:
            raise Failure(_text_of(error)) from error


def _text_of(error: OSError) -> str:
    return f"{error.filename or 'the operating system'}: {error.strerror or error}"


@click.command(cls=Commands)
@click.version_option(package_name=DISTRIBUTION, message=f"metaq %(version)s, {description()}")
def metaq() -> None:
    """A transactional message broker: a database row and a message, both or neither.

    \b
    metaq demo             see the main job survive three kills
    metaq dev              a ZooKeeper and a broker to work with
    metaq COMMAND --help   what a command does, with examples

    Every listing takes --json. ZooKeeper is named with --zk or the environment variable METAQ_ZK.
    """


def main() -> None:
    """Run the command line. Exit status: 0 done, 1 the answer is no, 2 an error told in one line, 130 interrupted, 143
    terminated."""
    _open_closed_streams()
    ended_by: list[int] = []  # statuses of the signals that came

    def interrupt(number: int, frame: FrameType | None) -> None:
        ended_by.append(INTERRUPTED)
        signal.default_int_handler(number, frame)

    def terminate(number: int, frame: FrameType | None) -> None:
        ended_by.append(TERMINATED)
        sys.exit(TERMINATED)

    # Service managers send SIGTERM: handle it like Ctrl-C, so that the offsets of shown messages are stored.
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, terminate)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell has background commands ignore it
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        _run(ended_by)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _drop_unwritten()


def _open_closed_streams() -> None:
    """Let /dev/null stand for a standard stream that the caller closed: else the next file opened, as of a journal, is
    standard output to whatever writes there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _drop_unwritten() -> None:
    """Drop what the standard streams do not take: the interpreter would try once more, and end with status 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_error(error: str) -> None:
    """Print *error*; where nobody can read it, the exit status alone tells."""
    with contextlib.suppress(OSError):
        tell(f"error: {error}")


def _run(ended_by: list[int]) -> None:
    """Run the command, and exit. An error after a signal is the signal's: what raises at a moment that a library does
    not expect, or that it swallows, ends as another error."""
    try:
        status = metaq.main(prog_name="metaq", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "metaq"
        _print_error(f"{error.format_message().rstrip('.')}: see `{command} --help`")
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _print_error(error.format_message())
        sys.exit(ended_by[0] if ended_by else error.exit_code)
    except (BrokenPipeError, ReaderGone):
        sys.exit(0)
    except OSError as error:  # of --help and --version, which no command runs
        _print_error(_text_of(error))
        sys.exit(Failure.exit_code)
    except Exception:  # of metaq's own making: not 1, which is an answer
        if ended_by:
            sys.exit(ended_by[0])
        with contextlib.suppress(OSError):
            traceback.print_exc()
        sys.exit(Failure.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
