"""Broker addresses (spec 1.7)."""

import pytest

from zk.tree.broker_url import BrokerUrl, InvalidUrl


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("meta://10.0.0.9:8123", BrokerUrl("10.0.0.9", 8123)),
        ("meta://broker-1.example.org:1", BrokerUrl("broker-1.example.org", 1)),
        ("meta://[2001:db8::1]:8123", BrokerUrl("2001:db8::1", 8123)),
        ("meta://[fe80::1%eth0]:65535", BrokerUrl("fe80::1%eth0", 65535)),
    ],
)
def test_url_both_ways(text: str, url: BrokerUrl) -> None:
    assert BrokerUrl.parse(text) == url
    assert str(url) == text


def test_any_meta_scheme_is_read() -> None:
    assert str(BrokerUrl.parse("metaq://b:1")) == "meta://b:1"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "b:1",
            "http://b:1",
            "meta://b",
            "meta://:1",
            "meta://b:",
            "meta://b:0",
            "meta://b:65536",
            "meta://b:123456",
        ),
        *("meta://b:x", "meta://b:1/", "meta://b:1\n", "meta://a b:1", "meta://-b:1", "meta://b/c:1", "meta://u@b:1"),
        *("meta://::1:1", "meta://[::1:1", "meta://[b]:1", "meta://[::g]:1", "meta://[::1%a b]:1", "meta://b:٣"),
        *("meta://" + "b" * 254 + ":1", "meta://" + "b" * 64 + ":1", "meta://a..b:1", "meta://[::1%a..b]:1"),
    ],
)
def test_no_url(text: str) -> None:
    with pytest.raises(InvalidUrl):
        BrokerUrl.parse(text)
