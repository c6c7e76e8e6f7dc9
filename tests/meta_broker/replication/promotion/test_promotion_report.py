"""The report of `metaq promote` as text: bounded, and with what other slaves answered or did not."""

from pathlib import Path

from meta_broker.cli.promote_report import SHOWN_MAX, PromotionReport, report_lines, report_object
from meta_broker.replication.promotion.candidates import Candidate, NoReport
from meta_broker.replication.promotion.promotion_check import ReplicaStatus
from meta_broker.replication.replica.copy_report import CopyReport
from tests.meta_broker.replication.promotion.test_promotion_check import FACTS

COPY = CopyReport(
    cluster="metaq",
    broker_id=0,
    slave_id=2,
    start=128,
    end=600,
    flushed=500,
    high_watermark=400,
    is_complete=True,
    data="/data/two",
    epoch_history=(),
)


def test_branches_in_doubt_are_bounded_and_other_slaves_named() -> None:
    in_doubt = [f"XID:1:{number:02x}:62:q" for number in range(SHOWN_MAX + 2)]
    others = {3: Candidate("meta://c:1", NoReport("no answer in 3 s")), 2: Candidate("meta://b:1", COPY)}
    status = ReplicaStatus(FACTS, 128, 500, 2, in_doubt, 0)
    report = PromotionReport(Path("/data/one"), status, None, None, others, [])
    text = list(report_lines(report, 5_000))
    assert f"                {in_doubt[SHOWN_MAX - 1]}" in text
    assert f"                {in_doubt[SHOWN_MAX]}" not in text
    assert "                and 2 more: metaq txn list --dir /data/one" in text
    assert text[-2:] == [
        f"  slave 2     meta://b:1: LSN 128 to 600, fsynced up to 500, epoch {COPY.epoch}, in /data/two",
        "  slave 3     meta://c:1: not known: no answer in 3 s",
    ]
    assert report_object(report)["in_doubt"] == in_doubt
