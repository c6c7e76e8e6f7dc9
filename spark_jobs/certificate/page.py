"""The certificate as one HTML page: no script, nothing from another host, fit for printing."""

import json
from html import escape
from typing import Any, Final

from spark_jobs.certificate.classes import BROKEN, CLASSES

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #1a1a1a; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; break-after: avoid; }
table { border-collapse: collapse; width: 100%; } tr { break-inside: avoid; }
th, td { text-align: left; vertical-align: top; padding: .3em .6em; border-bottom: 1px solid #ccc; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { padding: .8em 1em; border-left: .4em solid; background: #f4f4f4; font-weight: 600; }
.good { border-color: #1c7c3c; } .bad { border-color: #b3261e; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; font-size: 11px; } .verdict { background: none; } }
"""


def page(envelope: dict[str, Any]) -> str:
    """Return the page of a certificate, signed or refused. Everything in it is escaped: names come from users."""
    one, signature = envelope["certificate"], envelope["signature"]
    is_good = not one["apart"] and not one["refused"]
    brokers, database = one["brokers"], one["database"]
    parts = [
        f"<h1>Certificate of {_text(database['place'])} and {len(brokers)} brokers</h1>",
        f'<p class="verdict {"good" if is_good else "bad"}">{_text(one["sentence"])}</p>',
        f"<p>Transactions with news since {_text(one['since'])}. Made at {_text(one['made_at'])}.</p>",
        _signature(signature, one["refused"]),
        "<h2>What became of each transaction</h2>",
        _table(
            ("class", "means", "transactions", "branches", "messages", "rows"),
            [
                (name, CLASSES[name], *(counts[count] for count in ("transactions", "branches", "messages", "rows")))
                for name, counts in one["classes"].items()
                if name in CLASSES
            ],
        ),
        "<h2>On whose word</h2>",
        "<p>The brokers' side is their journals'; the database's side is said by</p>",
        _table(
            ("class", "database", "transactions"),
            [(said["class"], said["database"], said["transactions"]) for said in one["sources"]],
        ),
        "<h2>Counts that must add up</h2>",
        _table(
            ("what", "by classes", "at its source"), [(a["what"], a["counted"], a["expected"]) for a in one["accounts"]]
        ),
        "<h2>What was read</h2>",
        f"<p>Database {_text(database['place'])}, decision table <code>{_text(database['decision_table'])}</code>, one "
        f"snapshot at WAL {_text(database['wal_lsn'])}, {_text(database['read_at'])}.</p>",
        _table(("marker", "rows", "names"), [(m["column"], m["rows"], m["names"]) for m in database["markers"]]),
        *_section("Coordinators' logs", one["coordinators"]),
        *(_broker(broker) for broker in brokers),
    ]
    for name in (*BROKEN, "in doubt", "unknown"):
        if found := one["examples"].get(name):
            parts += _section(f"{_text(name)}: the first {len(found)}", found)
    parts += _section("Consumers", one["consumers"])
    parts += ["<h2>Not proven</h2>", "<ul>", *(f"<li>{_text(line)}</li>" for line in one["not_proven"]), "</ul>"]
    head = f'<meta charset="utf-8"><title>metaq certificate</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _broker(broker: dict[str, Any]) -> str:
    rows = [
        (
            f"{one['since']} to {one['until']}",
            one["claim"],
            one["source"] if one["vouched"] else f"UNKNOWN: {one['source']}",
        )
        for one in broker["evidence"]
    ]
    title = f"<h2>Broker {_text(broker['broker'])} of {_text(broker['cluster'])}, {_text(broker['path'])}</h2>"
    return f"{title}<p>{_text(broker['sentence'])}</p>{_table(('LSN', 'claim', 'by'), rows)}"


def _section(title: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return a section with a table of *rows*; none without them."""
    return [f"<h2>{title}</h2>", _table(tuple(rows[0]), [tuple(row.values()) for row in rows])] if rows else []


def _signature(signature: dict[str, Any] | None, refused: list[str]) -> str:
    if signature is None:
        reasons = "".join(f"<li>{_text(reason)}</li>" for reason in refused)
        return f'<p class="verdict bad">Not signed:</p><ul>{reasons}</ul>'
    key = f"<code>{_text(signature['fingerprint'])}</code>"
    return f"<p>The file in JSON is signed with {_text(signature['algorithm'])} by key {key}; this page is not.</p>"


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "".join(f"<th>{_text(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{_text(value)}</td>"


def _text(value: object) -> str:
    """Escape *value*, and show what does not print."""
    text = "none" if value is None else str(value)
    return escape("".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text))
