"""Positions that are taken, and that are refused."""

from datetime import UTC, datetime

import pytest

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.position import Position, check_position


@pytest.mark.parametrize("position", [0, 2**63 - 1, "earliest", "latest", datetime(2026, 1, 1, tzinfo=UTC)])
def test_a_position(position: Position) -> None:
    assert check_position(position) == position
    assert ConsumerConfig(start=position).start == position


@pytest.mark.parametrize("wrong", [-1, 2**63, True, 1.5, None, "end"])
def test_no_position(wrong: Position) -> None:
    """Beyond 63 bits no broker could be asked, and the group's offset could not be read again."""
    with pytest.raises(ValueError, match="give an offset, 'earliest', 'latest' or a datetime"):
        check_position(wrong)
