"""The access file: checked whole, secrets never quoted; patterns, addresses and certificates name one principal."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_broker.access.attempts import FAILURES_MAX, RECOVERY_S, REMEMBERED_MAX, FailedLogins
from meta_broker.access.principal import Principal, Right, matches
from meta_broker.access.rules import FILE_BYTES_MAX, load_rules, parse_rules
from meta_broker.access.scram import Verifier
from meta_broker.config.security_sections import AccessSection, AdminSection
from meta_broker.errors import ConfigError
from meta_broker.net.identified import certificate_names
from meta_client.errors import InvalidSecurity

VERIFIER = str(Verifier.of("pencil", 4096))
pieces = st.text("ab*.", max_size=8)


@given(pieces, st.text("ab.", max_size=12))
def test_a_star_stands_for_any_characters(pattern: str, name: str) -> None:
    model = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    assert matches(pattern, name) == (model.fullmatch(name) is not None)


def test_a_long_name_and_many_stars_take_no_time() -> None:
    assert not matches("*a" * 100 + "b", "a" * 8000)
    assert not Principal(name="p", produce=("*",)).may(Right.PRODUCE, "a" * 1025)


def test_rights_are_denied_unless_given() -> None:
    nobody = Principal(name="nobody")
    assert [right for right in Right if nobody.may(right, "orders")] == [Right.GROUPS]
    shop = Principal(name="shop", produce=("orders", "shop-*"))
    assert shop.may(Right.PRODUCE, "orders")
    assert shop.may(Right.PRODUCE, "shop-1")
    assert not shop.may(Right.PRODUCE, "orders2")
    assert not shop.may(Right.CONSUME, "orders")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[principals.shop]", "nobody can be it"),
        ("[principals.shop]\nadresses = []", "unknown key 'adresses'"),
        ('[principals.shop]\nname = "x"', "unknown key name"),
        ('[principals."a b"]\naddresses = ["10.0.0.0/8"]', "no white space"),
        ('[principals."*"]\naddresses = ["10.0.0.0/8"]', "no star"),
        ('[principals.shop]\naddresses = ["10.0.0.1/8"]', "no range"),
        ('[principals.shop]\naddresses = ["10.0.0.1"]\nproduce = [""]', "no name with stars"),
        ('[principals.shop]\naddresses = ["10.0.0.1"]\nproduce = "orders"', "Expected `array`"),
        ('[principals.a]\naddresses = ["10.0.0.1"]\n[principals.b]\naddresses = ["10.0.0.1"]', "to one only"),
        ('[principals.a]\ncertificates = ["c"]\n[principals.b]\ncertificates = ["c"]', "to one only"),
        ("[principals", "table declaration"),
        ("[rules]", "unknown field"),
        ('[principals.shop]\nverifier = "hunter2"', "it is no verifier"),
        ('[principals.shop]\nverifier = "SCRAM-SHA-256$1$aHVudGVyMg==$aHVudGVyMg==$aHVudGVyMg=="', "it is no verifier"),
        ('[principals.shop]\nverifier = "SCRAM-SHA-256$4096$aHVudGVyMg==$aHVudGVyMg=="', "it is no verifier"),
        (f'[principals.shop]\nverifier = "{VERIFIER.replace("$4096$", "$00004096$")}"', "it is no verifier"),
        (f'[principals.slave]\nslaves = [1]\nverifier = "{VERIFIER}"', "it may not replicate"),
        (f'[principals.shop]\nverifier = "{VERIFIER.replace("$4096$", "$4095$")}"', "iterations are allowed"),
        (f'[principals.shop]\nverifier = "{VERIFIER.replace("$4096$", "$9999999$")}"', "iterations are allowed"),
    ],
)
def test_a_wrong_file_is_refused_whole_and_no_secret_is_quoted(text: str, says: str) -> None:
    good = f'\n[principals.good]\nverifier = "{VERIFIER}"\n'
    with pytest.raises(ConfigError) as told:
        parse_rules((good + text).encode(), "access.toml")
    assert says in str(told.value)
    assert "hunter2" not in str(told.value)
    assert "aHVudGVy" not in str(told.value)
    assert VERIFIER.split("$")[3] not in str(told.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text(f'[principals.shop]\nverifier = "{VERIFIER}"\n')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_rules(path)
    path.chmod(0o600)
    assert set(load_rules(path).principals) == {"shop"}
    with pytest.raises(ConfigError, match="name a readable TOML file"):
        load_rules(tmp_path / "none.toml")
    os.truncate(path, FILE_BYTES_MAX + 1)
    with pytest.raises(ConfigError, match=f"larger than {FILE_BYTES_MAX} bytes"):
        load_rules(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="others are kept out by the permissions: run as root")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner may change it, though nobody else may: who may do what is for the broker's user and root to say."""
    rules, token = tmp_path / "access.toml", tmp_path / "token"
    rules.write_text(f'[principals.shop]\nverifier = "{VERIFIER}"\n')
    token.write_text("a" * 32)
    admin = AdminSection(token_file=str(token))
    for path in (rules, token):
        path.chmod(0o600)
    assert set(load_rules(rules).principals) == {"shop"}
    assert admin.token() == "a" * 32
    for path in (rules, token):
        os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        load_rules(rules)
    with pytest.raises(InvalidSecurity, match="belongs to another user"):
        admin.token()


def test_a_broker_does_not_take_a_file_that_names_nobody(tmp_path: Path) -> None:
    """Refusal of what an editor leaves for a moment, or a full disk for good: a reload would shut everybody out."""
    path = tmp_path / "access.toml"
    path.touch(0o600)
    for text in ("", 'secret = "s"\n', "[principals]\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="names no principal"):
            AccessSection(file=str(path)).rules()


def test_the_narrowest_range_counts() -> None:
    rules = parse_rules(
        b'[principals.all]\naddresses = ["10.0.0.0/8", "::/0"]\n[principals.one]\naddresses = ["10.1.0.0/16"]', "f"
    )
    found = {text: getattr(rules.of_address(text), "name", None) for text in ("10.2.0.1", "10.1.0.1", "11.0.0.1", "?")}
    assert found == {"10.2.0.1": "all", "10.1.0.1": "one", "11.0.0.1": None, "?": None}
    assert getattr(rules.of_address("::ffff:10.1.2.3"), "name", None) == "one"  # an IPv4 peer of an IPv6 socket
    assert rules.of_address("::ffff:11.0.0.1") is None
    assert getattr(rules.of_address("fe80::1%eth0"), "name", None) == "all"


def test_a_certificate_belongs_to_whom_it_names() -> None:
    rules = parse_rules(b'[principals.shop]\ncertificates = ["shop-1", "shop@b.example"]', "f")
    peer = {
        "subject": ((("organizationName", "shop-1"),), (("commonName", "any"),)),
        "subjectAltName": (("email", "shop@b.example"), ("IP Address", "10.0.0.1")),
    }
    assert certificate_names(peer) == ("any", "shop@b.example")
    assert getattr(rules.of_certificate(certificate_names(peer)), "name", None) == "shop"
    assert rules.of_certificate(("organizationName",)) is None
    assert certificate_names(None) == certificate_names({}) == ()


def test_nothing_shows_a_verifier() -> None:
    rules = parse_rules(f'[principals.shop]\nverifier = "{VERIFIER}"\n'.encode(), "f")
    shown = repr(rules.principals["shop"]) + repr(rules) + repr(Verifier.parse(VERIFIER)) + str(rules.principals)
    assert not any(key in shown for key in VERIFIER.split("$")[2:])


def test_failed_logins_of_one_address_are_limited_and_forgotten() -> None:
    failed, now = FailedLogins(), 1000.0
    for number in range(FAILURES_MAX - 1):
        failed.failed("10.0.0.1", f"user-{number}", now)
        assert failed.wait_s("10.0.0.1", "shop", now) == 0
    failed.failed("10.0.0.1", "shop", now)
    assert failed.wait_s("10.0.0.1", "shop", now) == pytest.approx(RECOVERY_S)
    assert failed.wait_s("10.0.0.2", "shop", now) == 0
    assert failed.wait_s("10.0.0.1", "shop", now + RECOVERY_S) == 0
    failed.failed("10.0.0.1", "shop", now + RECOVERY_S)
    assert failed.wait_s("10.0.0.1", "shop", now + RECOVERY_S) > 0
    failed.succeeded("10.0.0.1", "own")
    assert failed.wait_s("10.0.0.1", "shop", now) > 0, "a success forgives nothing to others"
    for number in range(REMEMBERED_MAX + 10):
        failed.failed(str(number), "", now)
        failed.succeeded(str(number), "shop")
    assert len(failed._full_at) == len(failed._known) == REMEMBERED_MAX


def test_a_user_that_has_logged_in_from_an_address_is_counted_by_itself() -> None:
    failed, now = FailedLogins(), 1000.0
    failed.succeeded("10.0.0.1", "shop")
    for _ in range(2 * FAILURES_MAX):
        failed.failed("10.0.0.1", "operator", now)
    assert failed.wait_s("10.0.0.1", "operator", now) > 0
    assert failed.wait_s("10.0.0.1", "shop", now) == 0
    for _ in range(FAILURES_MAX):
        failed.failed("10.0.0.1", "shop", now)
    assert failed.wait_s("10.0.0.1", "shop", now) > 0
    failed.succeeded("10.0.0.1", "shop")
    assert failed.wait_s("10.0.0.1", "shop", now) == 0
