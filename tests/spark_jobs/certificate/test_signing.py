"""A signature fits what was signed and nothing else; the page shows what it is given as text."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from spark_jobs.certificate.classes import CLASSES
from spark_jobs.certificate.page import page
from spark_jobs.certificate.signing import SigningError, make_key, read_private_key, read_public_key, signed, verified
from spark_jobs.cli.certify import certify

COUNTS = {"transactions": 1, "branches": 2, "messages": 3, "rows": 4}
BODY: dict[str, Any] = {
    "format": 1,
    "made_at": "2026-01-01T00:00:00+00:00",
    "since": "2026-01-01T00:00:00+00:00",
    "sentence": "Of 9 transactions none came apart.",
    "apart": {},
    "refused": [],
    "database": {
        "place": "<script>alert(1)</script>", "decision_table": "0" * 32, "wal_lsn": "0/1", "read_at": "now",
        "markers": [{"column": "a\x1b.b&c", "rows": 4, "names": "transactions"}],
    },
    "brokers": [
        {
            "broker": 0, "cluster": "<b>", "path": "/data", "sentence": "It holds.",
            "evidence": [{"claim": "c", "since": 0, "until": 9, "source": "s", "vouched": False}],
        }
    ],
    "classes": dict.fromkeys(CLASSES, COUNTS),
    "examples": {"orphan": [{"transaction": "<img src=x>", "rows": 1}]},
    "accounts": [{"what": "rows", "counted": 4, "expected": 4}],
    "consumers": [],
    "sources": [{"class": "orphan", "database": "marked rows", "transactions": 1}],
    "coordinators": [{"coordinator": "<b>", "directory": "/d", "copy": True}],
    "not_proven": ["all of it"],
}  # fmt: skip


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key(tmp_path / "key.pem")
    return tmp_path / "key.pem"


def written(tmp_path: Path, envelope: Any) -> Path:
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(envelope, indent=1))
    return file


def test_it_verifies_by_the_key_that_signed_it_alone(tmp_path: Path, key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    file = written(tmp_path, signed(BODY, read_private_key(key)))
    public = tmp_path / "key.pem.pub"
    body, fingerprint = verified(file, read_public_key(public))
    assert body == BODY
    result = CliRunner().invoke(certify, ["verify", str(file), "--key", str(public)])
    assert (result.exit_code, result.output) == (0, f"verified: signed by key {fingerprint}\n{BODY['sentence']}\n")

    other = tmp_path / "other.pem"
    make_key(other)
    with pytest.raises(SigningError, match=r"signed by key .*, not by"):
        verified(file, read_public_key(tmp_path / "other.pem.pub"))
    result = CliRunner().invoke(certify, ["verify", str(file)])
    assert result.exit_code == 1
    assert "whose that is, is not known: give --key" in result.output


def _other_count(envelope: Any) -> None:
    envelope["certificate"]["classes"]["orphan"]["transactions"] = 0


def _one_more(envelope: Any) -> None:
    envelope["certificate"]["note"] = "all is well"


def _other_value(envelope: Any) -> None:
    envelope["signature"]["value"] = envelope["signature"]["value"][:-8] + "AAAAAA=="


def _other_algorithm(envelope: Any) -> None:
    envelope["signature"]["algorithm"] = "none"


def _unsigned(envelope: Any) -> None:
    envelope["signature"] = None


def _no_object(envelope: Any) -> None:
    envelope["certificate"] = []
    envelope["signature"] = 3


@pytest.mark.parametrize("change", [_other_count, _one_more, _other_value, _other_algorithm, _unsigned, _no_object])
def test_no_change_passes(tmp_path: Path, key: Path, change: Callable[[Any], None]) -> None:
    envelope = json.loads(json.dumps(signed(BODY, read_private_key(key))))
    change(envelope)
    file = written(tmp_path, envelope)
    with pytest.raises(SigningError):
        verified(file, None)
    assert CliRunner().invoke(certify, ["verify", str(file)]).exit_code == 1


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, key: Path) -> None:
    """Of the two, this program reads the last, which is signed; others read the first."""
    text = json.dumps(signed(BODY, read_private_key(key)))
    file = tmp_path / "certificate.json"
    file.write_text(text.replace('"certificate": {', '"certificate": {"sentence": "All is well.", '))
    with pytest.raises(SigningError, match="there twice"):
        verified(file, None)


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_what_json_has_not_is_one_line(tmp_path: Path, key: Path, number: str) -> None:
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(signed(BODY, read_private_key(key))).replace('"format": 1', f'"format": {number}'))
    with pytest.raises(SigningError, match="no certificate: Out of range"):
        verified(file, None)


@pytest.mark.parametrize("body", [[], {}, {"format": 1}, BODY | {"format": 2}, BODY | {"sentence": 1}, None])
def test_what_is_signed_and_no_certificate_is_refused(tmp_path: Path, key: Path, body: Any) -> None:
    file = written(tmp_path, signed(body, read_private_key(key)))
    done = CliRunner().invoke(certify, ["verify", str(file), "--key", f"{key}.pub"])
    assert (done.exit_code, "signed, and no certificate of format 1" in done.output) == (1, True)


def test_what_is_no_key_or_no_certificate_is_one_line(tmp_path: Path, key: Path) -> None:
    file = tmp_path / "no.json"
    file.write_text("[" * 100_000)
    with pytest.raises(SigningError, match="no certificate"):
        verified(file, None)
    rsa = tmp_path / "rsa.pem"
    made = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    rsa.write_bytes(made)
    for path in (rsa, tmp_path / "none", file):
        with pytest.raises(SigningError, match="metaq certify key"):
            read_private_key(path)
    with pytest.raises(SigningError, match="File exists"):
        make_key(key)


def test_the_page_shows_names_as_text(key: Path) -> None:
    shown = page(signed(BODY, read_private_key(key)))
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "<img" not in shown
    assert "\x1b" not in shown
    assert "a\\u001b.b&amp;c" in shown
    assert "http" not in shown, "nothing from another host"
    refused = page({"certificate": BODY | {"refused": ["rows: 3, not <4>"]}, "signature": None})
    assert "Not signed:" in refused
    assert "rows: 3, not &lt;4&gt;" in refused


def test_the_command_needs_its_three_options() -> None:
    result = CliRunner().invoke(certify, [])
    assert (result.exit_code, "give --database, --since and --dir" in result.output) == (2, True)
    result = CliRunner().invoke(certify, ["--database", "x", "--dir", ".", "--since", "yesterday"])
    assert (result.exit_code, "'yesterday' is not a time" in result.output) == (2, True)
