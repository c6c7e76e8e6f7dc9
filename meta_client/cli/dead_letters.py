"""`metaq groups dead-letters`: the messages that a consumer's listeners did not take, in its local store."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from meta_client.cli.formats import message_object
from meta_client.cli.options import connected
from meta_client.cli.output import existing_directory, json_option, print_rows, zk_option
from meta_client.consumer.dead_letters.index import MessageAddress
from meta_client.consumer.dead_letters.reading import read_dead_letters, read_group
from meta_client.consumer.dead_letters.store import DeadLetterStore

_directory = click.argument("directory", type=existing_directory)
_messages = click.argument("messages", nargs=-1, metavar="[TOPIC/B-P@OFFSET]...")
_all = click.option("--all", "all_of_them", is_flag=True, help="Take every waiting message.")


@click.group(name="dead-letters")
def dead_letters() -> None:
    """Messages that a consumer's listeners did not take, in its `dead_letter_directory`.

    The consumer offers them to its listeners again, some seconds after its start and every few minutes. What it
    will never take is resent or dropped here, while it does not run.

    \b
      metaq groups dead-letters list /var/lib/billing/refused
      metaq groups dead-letters resend /var/lib/billing/refused --all
    """


@dead_letters.command("list")
@_directory
@json_option
def list_dead_letters(directory: Path, as_json: bool) -> None:
    """List what waits in DIRECTORY, first refused first; its consumer may run. With --json, payloads too."""
    rows = []
    for entry, message in read_dead_letters(directory):
        record = entry.record
        row: dict[str, object] = {
            "message": str(entry.address),
            "bytes": len(message.payload),
            "refused": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.time_ms / 1000)),
            "attempts": record.attempts,
            "reason": record.reason,
        }
        rows.append(row | message_object(message, None) if as_json else row)
    print_rows(rows, as_json=as_json, empty="no dead letter waits here")


@dead_letters.command()
@_directory
@_messages
@_all
@zk_option
@click.option("--to", "target", metavar="TOPIC", help="Send them to this topic.  [default: their own]")
def resend(directory: Path, messages: tuple[str, ...], all_of_them: bool, zk: str, target: str | None) -> None:
    """Send messages that wait in DIRECTORY as new ones, and take each out once it is acknowledged.

    Every group of the topic sees them, again. After a crash in between one may be sent twice, and none is lost.

    \b
      metaq groups dead-letters resend /var/lib/billing/refused orders/0-3@1000
      metaq groups dead-letters resend /var/lib/billing/refused --all --to orders-refused
    """
    places = _chosen(messages, all_of_them)
    with _opened(directory) as store, connected(zk) as client:
        producer = client.producer()

        def send(address: MessageAddress) -> bool:
            if (message := store.message(address)) is None:
                return False
            producer.send(target or message.topic, message.payload, message.attribute)
            return store.drop(address)

        _each(store, places, send, "resent")


@dead_letters.command()
@_directory
@_messages
@_all
def drop(directory: Path, messages: tuple[str, ...], all_of_them: bool) -> None:
    """Give messages up that wait in DIRECTORY. There is no way back."""
    places = _chosen(messages, all_of_them)
    with _opened(directory) as store:
        _each(store, places, store.drop, "dropped")


def _chosen(messages: tuple[str, ...], all_of_them: bool) -> list[MessageAddress] | None:
    """None: all."""
    if bool(messages) == all_of_them:
        raise click.UsageError("name messages as `metaq groups dead-letters list` shows them, or give --all")
    try:
        return None if all_of_them else [MessageAddress.parse(text) for text in messages]
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _each(
    store: DeadLetterStore, places: list[MessageAddress] | None, act: Callable[[MessageAddress], bool], done: str
) -> None:
    wanted = [entry.address for entry in store.entries()] if places is None else places
    missing = [address for address in wanted if not act(address)]
    click.echo(f"{done} {len(wanted) - len(missing)} messages", err=True)
    if missing:
        raise click.ClickException("no such message waits: " + ", ".join(map(str, missing)))


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[DeadLetterStore]:
    store = DeadLetterStore.open(directory, read_group(directory))
    try:
        yield store
    finally:
        store.close()
