"""Which long tests are played (tests/fixtures/long_tests.py): the table names tests, and a draw is fair."""

import re
from pathlib import Path

from tests.fixtures.long_tests import is_drawn, read_table

ROOT = Path(__file__).parents[1]


def test_the_table_names_tests_that_exist() -> None:
    table = read_table()
    assert table
    for test in table:
        file, *_, function = test.split("::")
        text = (ROOT / file).read_text()
        assert re.search(rf"\bdef {function}\(", text) or function == "runTest", (
            f"{test}: copy build/long_tests.txt again"
        )


def test_every_long_test_is_drawn_as_often_as_others() -> None:
    for test in read_table():
        count = sum(is_drawn(test, seed, 10) for seed in range(1_000))
        assert 50 <= count <= 150, test  # 100 plus or minus five standard deviations
        assert [is_drawn(test, seed, 1) for seed in range(9)] == [True] * 9
