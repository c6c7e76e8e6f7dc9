"""Accounts and their buckets: no more than the rate, whoever asks; bounded, however many strangers come."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_broker.access.accounts import BURST_S, DEBT_S_MAX, IDLE_MAX, READ_BYTES_MAX, Bucket, Limit, QuotaAccounts
from meta_broker.access.addresses import network_of
from meta_broker.access.quota import UNLIMITED, Quota
from meta_broker.access.rules import parse_rules
from meta_broker.config.loading import load
from meta_broker.errors import ConfigError

LIMITED = Quota(requests_per_second=10, bytes_in_per_second=1000)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(0.1, 1e6), st.lists(st.tuples(st.floats(0, 5), st.floats(0, 100)), max_size=60))
def test_who_waits_as_told_never_gets_more_than_the_rate(rate: float, steps: list[tuple[float, float]]) -> None:
    """Each step: some time passes, then a user takes an amount as soon as it may. Apart from the last one, what it took
    is covered by the rate and one burst."""
    bucket, now, taken, last = Bucket(rate), 100.0, 0.0, 0.0
    for pause_s, amount in steps:
        amount = min(amount, rate * (DEBT_S_MAX - 1))
        now += pause_s
        now += bucket.wait_s(now)
        bucket.charge(amount, now)
        taken, last = taken + amount, amount
        assert taken - last <= (rate * (now - 100.0 + BURST_S)) * (1 + 1e-9) + 1e-6


def test_a_debt_is_bounded_and_a_rate_may_change() -> None:
    bucket = Bucket(1.0)
    bucket.charge(1e9, 0.0)
    assert bucket.wait_s(0.0) == DEBT_S_MAX
    bucket.rate = 0
    assert bucket.wait_s(0.0) == math.inf
    bucket.rate = None
    assert bucket.wait_s(0.0) == 0.0
    bucket.rate = 1.0
    assert bucket.wait_s(DEBT_S_MAX - 1) == 1.0, "what is owed stays owed"


def test_strangers_of_many_addresses_leave_nothing_behind() -> None:
    clock = Clock()
    accounts = QuotaAccounts(clock)
    for number in range(3 * IDLE_MAX):
        account = accounts.of_address(f"a{number}", LIMITED)
        assert account is not None
        account.connections += 1
        account.requests.charge(1000, clock.now)
        account.throttled(Limit.REQUESTS, 1.0, clock.now, "conn")
        account.connections -= 1
        accounts.closed(account)
        assert len(accounts) <= IDLE_MAX
    assert [label for label, *_ in accounts.totals()] == ["-"]
    accounts.sweep()
    assert len(accounts) == IDLE_MAX, "what they owe is not forgotten yet"
    clock.now += DEBT_S_MAX + BURST_S
    accounts.sweep()
    assert len(accounts) == 0


def test_an_account_stays_while_something_of_it_is_open() -> None:
    clock = Clock()
    accounts = QuotaAccounts(clock)
    account = accounts.of_principal("shop", Quota(branches_max=1))
    assert account is not None
    end = account.begin_branch()
    accounts.closed(account)  # its connection; the branch stays
    clock.now += 1e6
    accounts.sweep()
    assert accounts.of_principal("shop", Quota(branches_max=1)) is account
    assert account.why_no_branch()
    end()
    assert not account.why_no_branch()
    clock.now += 1e6
    again = accounts.of_principal("shop", Quota(branches_max=1))
    assert again is account
    again.connections += 1  # opened between its end and the sweep
    accounts.sweep()
    assert accounts.of_principal("shop", Quota(branches_max=1)) is account
    assert accounts.of_principal("shop", UNLIMITED) is None


@given(st.floats(1, 1e9), st.integers(0, 10_000))
def test_what_connections_read_at_once_is_within_a_second_of_the_rate(rate: float, connections: int) -> None:
    account = QuotaAccounts(Clock()).of_principal("shop", Quota(bytes_in_per_second=rate))
    assert account is not None
    account.connections = connections
    assert 512 <= account.read_bytes <= READ_BYTES_MAX
    if account.read_bytes > 512:
        assert account.read_bytes * max(connections, 1) <= rate


def test_peers_are_counted_by_address_or_ipv6_network() -> None:
    assert network_of("192.0.2.7") == network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert network_of("fe80::1%eth0") != network_of("fe80::2%eth0")
    assert network_of("?") == "?"


def rules(text: str) -> dict[str, Quota]:
    found = parse_rules(text.encode(), "access.toml")
    return {name: found.quota_of(each) for name, each in found.principals.items()}


def test_a_principal_has_its_own_limits_and_the_common_ones() -> None:
    text = """
        [quota]
        requests_per_second = 100
        branches_max = 7
        [principals.shop]
        addresses = ["10.0.0.0/8"]
        quota = {requests_per_second = 5.5}
        [principals.reader]
        addresses = ["11.0.0.0/8"]
        [principals.slave]
        addresses = ["12.0.0.0/8"]
        replicate = true
        """
    assert rules(text) == {
        "shop": Quota(requests_per_second=5.5, branches_max=7),
        "reader": Quota(requests_per_second=100, branches_max=7),
        "slave": UNLIMITED,
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[quota]\nrequests = 1", "access.toml: quota: unknown key 'requests': known are connections_max, "),
        (
            "[quota]\nrequests_per_second = -1",
            "quota.requests_per_second is -1.0: use a number from 0 to 1000000000000",
        ),
        ("[quota]\nbytes_in_per_second = nan", "quota.bytes_in_per_second is nan"),
        ("[quota]\nbranches_max = 1.5", "quota: Expected `int | null`, got `float` - at `$.branches_max`"),
        ("[principals.a]\naddresses=['::1']\nquota = {x = 1}", "access.toml: principals.'a'.quota: unknown key 'x'"),
        ("[principals.a]\naddresses=['::1']\nquota = 3", "access.toml: principals.'a'.quota is no section"),
    ],
)
def test_a_wrong_quota_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules(text)
    assert told in str(caught.value)


def test_the_quota_of_addresses_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    for text, told in (
        ("requests_per_second = -1", "address_quota.requests_per_second is -1.0"),
        ("requests_per_secnd = 1", "unknown key address_quota.requests_per_secnd: did you mean 'requests_per_second'?"),
    ):
        path.write_text(f'[topics."*"]\n[address_quota]\n{text}\n')
        with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
            load(path, data=tmp_path, broker_id=0, port=0)
