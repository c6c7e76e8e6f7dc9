"""The runs of a branch are as a list of them, and know their totals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.records.extents import Extent, ExtentList
from journal.records.header import Lsn

U32, U40 = st.integers(0, 2**32 - 1), st.integers(0, 2**40)
one = st.builds(lambda lsn, *rest: Extent(Lsn(lsn), *rest), U40, U32, U32, U40)


@given(first=st.lists(one, min_size=1, max_size=8), data=st.data())
def test_totals_follow_what_is_added_and_what_is_replaced(first: list[Extent], data: st.DataObject) -> None:
    listed, extents = list(first), ExtentList(first)
    for _ in range(data.draw(st.integers(1, 8))):
        extent = data.draw(one)
        if data.draw(st.booleans()):
            listed.append(extent)
            extents.append(extent)
        else:
            at = data.draw(st.integers(-len(listed), len(listed) - 1))
            listed[at] = extents[at] = extent
    assert extents == listed
    for outside in (len(listed), -len(listed) - 1):
        with pytest.raises(IndexError):
            extents[outside]
    assert (extents.bytes, extents.messages) == (
        sum(extent.bytes for extent in listed),
        sum(extent.messages for extent in listed),
    )
