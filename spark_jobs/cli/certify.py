"""`metaq certify`: join a database with brokers' journals, transaction by transaction, and sign what was found."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from spark_jobs.cli.options import fail, shown, side_options, spark_options, time_ms


@click.group(invoke_without_command=True)
@side_options(is_required=False)
@click.option(
    "--coordinator",
    "coordinators",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A coordinator's directory, with its decision log.",
)
@click.option(
    "--key", type=click.Path(path_type=Path), help="Private key to sign with: metaq certify key FILE makes one."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the certificate there, as JSON.")
@click.option("--html", type=click.Path(path_type=Path), help="Write it as an HTML page, too.")
@spark_options
@click.pass_context
def certify(
    context: click.Context, /, url: str | None, since: str | None, directories: tuple[Path, ...], **given: Any
) -> None:
    """Certify that database and brokers agree, transaction by transaction, since a time.

    Reads one snapshot of the database and the journals of all brokers, live or dead, each with an audit. Every
    transaction is in one class: committed in both, rolled back in both, in doubt, open, unknown, or one of those that
    came apart: mixed, orphan (messages without a row), missing (a row without a branch), duplicate. Counts must add up,
    or nothing is signed.

    A marker is a column of your own with the transaction's name, one row a transaction (transaction.gtrid), or the
    message's id, one row a message. Without one, a committed transaction is unknown once its decision row is deleted.

    XA transactions are decided by a coordinator's log: name its directory. The database is asked what it knows of those
    in the log. Branches whose log is not named are counted under what is not proven.

    \b
    metaq certify key release.pem
    metaq certify --database $DATABASE_URL --since 2026-01-01 --dir /var/lib/metaq-0 --dir /var/lib/metaq-1
                  --marker orders.gtrid --key release.pem --out certificate.json --html certificate.html
    metaq certify verify certificate.json --key release.pem.pub

    Exit code: 0 signed, and nothing came apart or is unknown; 1 something did or is, an offset is not within, or
    nothing was signed; 2 it could not be done.
    """
    if context.invoked_subcommand is not None:
        return
    if url is None or since is None or not directories:
        raise click.UsageError("give --database, --since and --dir, one for each broker")
    since_ms = time_ms(since)
    envelope = _run(url, since_ms, directories, **given)
    body = envelope["certificate"]
    if given["out"] is None:
        click.echo(json.dumps(envelope))
    else:
        _write(given["out"], json.dumps(envelope, indent=1) + "\n")
        _print(body)
    if given["html"] is not None:
        from spark_jobs.certificate.page import page

        _write(given["html"], page(envelope))
    for reason in body["refused"]:
        click.echo(f"not signed: {reason}", err=True)
    from spark_jobs.certificate.statement import agrees

    raise SystemExit(0 if agrees(body) else 1)


def _run(url: str, since_ms: int, directories: tuple[Path, ...], **given: Any) -> dict[str, Any]:
    try:
        from meta_client.coordinator.errors import CoordinatorError
        from spark_jobs.certificate.coordinator_side import CoordinatorLogs
        from spark_jobs.certificate.database import DatabaseProblem, Marker
        from spark_jobs.certificate.join import JoinRequest
        from spark_jobs.certificate.signing import SigningError, read_private_key, signed
        from spark_jobs.certificate.statement import make_certificate
        from spark_jobs.cli.running import check_places, ending_with_line, progress_of, started_spark
    except ModuleNotFoundError as error:
        fail(f"no module {error.name}: run pip install 'metaq-broker[certificate,postgres]'")
    with ending_with_line(given["master"], CoordinatorError, DatabaseProblem, SigningError):
        key = None if given["key"] is None else read_private_key(given["key"])
        markers = tuple(Marker.parse(text) for text in given["markers"])
        request = JoinRequest(directories, url, markers, since_ms, given["offsets"], given["coordinators"])
        check_places(given["master"], directories)
        CoordinatorLogs(given["coordinators"])  # before Spark is started
        with started_spark("certify", given["master"], given["settings"]) as spark:
            body = make_certificate(spark, request, progress_of("certify"))
        if key is None and not body["refused"]:
            body["refused"] = ["no --key was given"]
        if body["refused"] or key is None:
            return {"certificate": body, "signature": None}
        return signed(body, key)


@certify.command("key")
@click.argument("file", type=click.Path(path_type=Path))
def make_key_command(file: Path) -> None:
    """Make a key pair: FILE, for you alone, and FILE.pub, for those who verify."""
    from spark_jobs.certificate.signing import SigningError, make_key

    try:
        click.echo(f"{file}.pub: key {make_key(file)}")
    except SigningError as error:
        fail(str(error))


@certify.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), help="Public key of the expected signer.")
def verify_command(file: Path, key: Path | None) -> None:
    """Verify that the certificate in FILE is as it was signed, by the key given.

    Without --key it tells only that the file was not changed since somebody signed it, and by which key: exit code 1,
    since anybody can make a key.
    """
    from spark_jobs.certificate.signing import SigningError, read_public_key, verified

    try:
        body, fingerprint = verified(file, None if key is None else read_public_key(key))
    except SigningError as error:
        click.echo(f"NOT verified: {error}", err=True)
        raise SystemExit(1) from error
    if key is None:
        click.echo(f"unchanged since key {fingerprint} signed it; whose that is, is not known: give --key")
    else:
        click.echo(f"verified: signed by key {fingerprint}")
    click.echo(shown(body["sentence"]))
    raise SystemExit(1 if key is None else 0)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def _print(body: dict[str, Any]) -> None:
    table = Table(show_edge=False)
    for heading in ("class", "transactions", "branches", "messages", "rows"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for name, counts in body["classes"].items():
        table.add_row(name, *(f"{number:,}" for number in counts.values()))
    console = Console()
    console.print(table)
    for name, found in body["examples"].items():
        for one in found:
            console.print(f"  {name}: {shown(str(one['transaction']))}", soft_wrap=True, markup=False, highlight=False)
    click.echo(shown(body["sentence"]))
