"""The newest values and what they cost, against a dict."""

from hypothesis import given, settings
from hypothesis import strategies as st

from journal.records.newest import NewestByKey
from tests.fixtures.thoroughness import examples


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.text(max_size=4))))
def test_against_a_dict(steps: list[tuple[int, str | None]]) -> None:
    newest, expected = NewestByKey[int, str](len), dict[int, str]()
    for key, value in steps:
        if value is None:
            assert newest.remove(key) == (expected.pop(key, None) is not None)
        else:
            newest.put(key, value)
            expected[key] = value
        assert newest.find(key) == expected.get(key)
        assert (list(newest), newest.bytes) == (list(expected.values()), sum(map(len, expected.values())))
