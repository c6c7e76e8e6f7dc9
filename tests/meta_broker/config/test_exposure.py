"""Listening elsewhere than on this machine: refused without authentication, and loud when it is insecure."""

from pathlib import Path

import pytest

from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.exposure import exposure_warnings
from meta_broker.config.loading import load
from meta_broker.errors import ConfigError
from meta_client.admin.host import is_loopback
from tests.fixtures.certificates import Certificates

TOPICS = '\n[topics."*"]\n'


def loaded(directory: Path, text: str) -> BrokerConfig:
    path = directory / "broker.toml"
    path.write_text(text + TOPICS)
    return load(path, data=directory / "data", broker_id=0, port=0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "b0.example", "127.evil.example", "localhost.example"])
def test_a_host_that_others_reach_needs_authentication(host: str, tmp_path: Path) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"broker\.insecure = true") as told:
        loaded(tmp_path, f'[broker]\nhost = "{host}"')
    assert host in str(told.value)
    config = loaded(tmp_path, f'[broker]\nhost = "{host}"\ninsecure = true')
    assert [text for text in exposure_warnings(config) if text.startswith("INSECURE")]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_this_machine_alone_needs_none(host: str, tmp_path: Path) -> None:
    assert exposure_warnings(loaded(tmp_path, f'[broker]\nhost = "{host}"')) == []


def test_the_admin_port_needs_it_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"admin\.host 0\.0\.0\.0"):
        loaded(tmp_path, '[admin]\nport = 0\nhost = "0.0.0.0"')
    loaded(tmp_path, '[admin]\nhost = "0.0.0.0"')  # it is off


def test_a_token_opens_the_admin_port_to_others_once_tls_hides_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-the-tests\n")
    text = f'[admin]\nport = 0\nhost = "0.0.0.0"\ntoken_file = "{token}"\n'
    with pytest.raises(ConfigError, match=r"admin\.host 0\.0\.0\.0.*a certificate in \[tls\]"):
        loaded(tmp_path, text)
    assert exposure_warnings(loaded(tmp_path, text + Certificates(tmp_path / "ca").tls())) == []


@pytest.mark.parametrize(
    ("text", "mode"), [("short", 0o600), ("", 0o600), ("two words of it all", 0o600), ("a" * 20, 0o644)]
)
def test_a_token_that_guards_nothing_is_refused_and_not_quoted(text: str, mode: int, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(text)
    token.chmod(mode)
    with pytest.raises(ConfigError, match=r"admin: .*token") as told:
        loaded(tmp_path, f'[admin]\ntoken_file = "{token}"')
    assert not text or text not in str(told.value)
    with pytest.raises(ConfigError, match="can't be read"):
        loaded(tmp_path, f'[admin]\ntoken_file = "{tmp_path}/missing"')


@pytest.mark.parametrize(
    ("more", "is_enough"),
    [
        ('client_certificates = "required"', True),
        ('client_certificates = "optional"', False),
        ("", False),
        ('client_certificates = "required"\nplain_from = ["10.0.0.0/8"]', False),
    ],
)
def test_required_certificates_are_enough(more: str, is_enough: bool, tmp_path: Path) -> None:
    text = '[broker]\nhost = "0.0.0.0"\n' + Certificates(tmp_path / "ca").tls(more)
    if is_enough:
        assert exposure_warnings(loaded(tmp_path, text)) == []
    else:
        with pytest.raises(ConfigError, match="insecure = true"):
            loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ('[tls]\nca = "ca.pem"', r"tls\.certificate is missing"),
        ('[tls]\ncertificate = "none.pem"', r"none\.pem can't be used"),
        ('[tls]\ncertificate = "{cert}"\nclient_certificates = "required"', r"needs tls\.ca"),
        ('[tls]\ncertificate = "{cert}"\nplain_from = ["10.1"]', "no range of addresses"),
        ('[tls]\ncertificate = "{cert}"\nca = "none.pem"', r"none\.pem can't be used"),
        ('[tls]\ncertificates = "{cert}"', "did you mean 'certificate'"),
    ],
)
def test_a_wrong_tls_section_is_refused_with_its_reason(section: str, says: str, tmp_path: Path) -> None:
    certificate = Certificates(tmp_path / "ca").server()
    with pytest.raises(ConfigError, match=says):
        loaded(tmp_path, section.format(cert=certificate))
