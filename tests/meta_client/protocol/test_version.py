"""Identity of the peer, and the features it announces (spec 1.5.7)."""

import pytest

from meta_client.protocol.version import Capabilities, version_text


def test_version_text_both_ways() -> None:
    assert version_text("0.1.0", ["mput", "fetch"]) == "1.4.6 metaq/0.1.0 mput fetch"
    capabilities = Capabilities.parse(b"1.4.6 metaq/0.1.0 mput fetch")
    assert capabilities == Capabilities("0.1.0", frozenset({"mput", "fetch"}))
    assert Capabilities.parse(version_text("2").encode()) == Capabilities("2")
    assert version_text("2", ["mput"], broker_id=70) == "1.4.6 metaq/2 mput broker-70"
    assert Capabilities.parse(b"1.4.6 metaq/2 mput broker-70") == Capabilities("2", frozenset({"mput"}), 70)


@pytest.mark.parametrize(
    "text", [b"1.4.6", b"", b"mput", b"1.4.6 mput", b"metaq/", b"\xff\xfe", b"x" * 5000 + b" metaq/1 mput"]
)
def test_a_genuine_peer_has_no_extensions(text: bytes) -> None:
    assert Capabilities.parse(text) == Capabilities(None)


def test_words_that_are_no_extension_are_passed_over() -> None:
    assert Capabilities.parse(b"metaq/1 mput MPUT 2fast \xff fetch").extensions == {"mput", "fetch"}
