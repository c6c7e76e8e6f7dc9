"""Lines of the audit log that a principal can cause at will."""

from meta_broker.access.repeats import LINES_MAX, WINDOW_S, RepeatedLines


def test_the_same_line_is_written_once_a_window() -> None:
    lines = RepeatedLines()
    assert lines.admit("a", "x", 0.0) == 0
    assert lines.admit("a", "x", WINDOW_S - 1) is None
    assert lines.admit("b", "x", 1.0) == 0
    assert lines.admit("a", "x", WINDOW_S) == 0  # what was told already is not "left out"


def test_different_lines_have_a_limit_and_the_next_window_says_how_many_were_left_out() -> None:
    lines = RepeatedLines()
    admitted = [lines.admit("a", number, 0.0) for number in range(LINES_MAX + 50)]
    assert admitted == [0] * LINES_MAX + [None] * 50
    assert lines.admit("b", 0, 0.0) == 0
    assert lines.admit("a", "later", WINDOW_S) == 50
    assert lines.admit("a", "latest", WINDOW_S) == 0
