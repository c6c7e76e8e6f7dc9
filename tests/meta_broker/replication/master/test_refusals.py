"""A slave that is refused each second is logged once a reason."""

import pytest

from meta_broker.replication.master.sender_owner import SLAVES_MAX, Refusals


def test_a_reason_is_logged_once_until_it_changes_or_the_slave_was_accepted(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for reason in ("busy", "busy", "epoch", "busy"):
        refusals.log("10.0.0.1:9", "1", reason)
    refusals.clear("1")
    refusals.clear("2")
    refusals.log("10.0.0.1:9", "1", "busy")
    assert [line.rpartition("=")[2] for line in caplog.messages] == ["busy", "epoch", "busy", "busy"]


def test_any_number_of_slaves_may_be_refused(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for slave in range(SLAVES_MAX + 1):
        refusals.log("10.0.0.1:9", str(slave), "busy")
    refusals.log("10.0.0.1:9", str(SLAVES_MAX), "busy")
    assert (len(caplog.messages), len(refusals._logged)) == (SLAVES_MAX + 1, 1)
