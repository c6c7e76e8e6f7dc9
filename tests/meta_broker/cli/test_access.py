"""`metaq access`: the file of principals, which brokers would read, or why it is left alone."""

import json
import os
from pathlib import Path

import pytest

from meta_broker.access.rules import load_rules
from meta_broker.access.scram import Verifier
from tests.fixtures.forked import run_metaq


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.toml"


def test_a_principal_is_added_to_a_file_that_keeps_what_it_has(path: Path) -> None:
    password = path.with_name("password")
    password.write_text("from a file\nsecond line")
    options = ("--produce", "orders", "--produce", 'a"\\*', "--decide", "*", "--replicate")
    added = run_metaq("access", "add", "shop", "--file", str(path), "--password-file", str(password), *options)
    assert (added.returncode, added.stdout, added.stderr) == (0, "", f"shop added to {path}: send brokers SIGHUP\n")
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert run_metaq("access", "add", "päge", "--file", str(path), stdin="from a pipe\n").returncode == 0
    assert path.read_bytes().startswith(before)
    assert sorted(path.parent.iterdir()) == [path, password]
    shop, page = load_rules(path).principals.values()
    assert (shop.produce, shop.decide, shop.replicate, shop.groups) == (("orders", 'a"\\*'), ("*",), True, ("*",))
    assert page.name == "päge"
    for principal, text in ((shop, "from a file"), (page, "from a pipe")):
        verifier = Verifier.parse(principal.verifier or "")
        assert text not in path.read_text()
        assert verifier.iterations >= 4096


def test_principals_are_listed_with_how_they_prove_themselves(path: Path) -> None:
    path.touch(0o600)
    path.write_text(
        f'[principals.shop]\nverifier = "{Verifier.of("secret", 4096)}"\nproduce = ["orders", "stock"]\n'
        '[principals.old]\naddresses = ["10.0.0.0/8"]\n[principals.page]\ncertificates = ["page"]\n'
    )
    told = run_metaq("access", "list", "--file", str(path), "--json")
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert [(row["principal"], row["login"]) for row in rows] == [
        ("shop", "password"),
        ("old", "address"),
        ("page", "certificate"),
    ]
    assert (rows[0]["produce"], rows[0]["replicate"], rows[1]["addresses"]) == ("orders,stock", False, "10.0.0.0/8")


def test_a_right_over_what_no_file_can_name_is_refused(path: Path) -> None:
    refused = run_metaq(
        "access", "add", "shop", "--file", str(path), "--produce", os.fsdecode(b"\xff"), stdin="secret\n"
    )
    assert (refused.returncode, path.exists()) == (2, False)
    assert "codec can't decode byte 0xff" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("name", "password", "says"),
    [
        ("a b", "secret", "a name has 1 to 255 characters, no white space and no star"),
        ("shop*", "secret", "a name has 1 to 255 characters, no white space and no star"),
        (os.fsdecode(b"shop\xff"), "secret", "a name has 1 to 255 characters, no white space and no star"),
        ("known", "secret", "known is there already: remove its section first"),
        ("shop", "", "a user and a password of 1 to "),
        ("shop", "bell\a", "that password can't be used: "),
    ],
)
def test_what_cannot_be_added_leaves_the_file_as_it_is(name: str, password: str, says: str, path: Path) -> None:
    path.touch(0o600)
    path.write_text('[principals.known]\naddresses = ["10.0.0.0/8"]\n')
    before = path.read_bytes()
    refused = run_metaq("access", "add", name, "--file", str(path), stdin=password + "\n")
    assert refused.returncode == 2
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert [path.read_bytes(), list(path.parent.iterdir())] == [before, [path]]
