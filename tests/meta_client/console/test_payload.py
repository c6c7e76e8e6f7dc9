"""Payloads in each form; bytes from anybody."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.console.payload import FORMS, HEX_BYTES, JSON_BYTES, SHOWN_BYTES, preview, shown


@pytest.mark.parametrize(
    ("payload", "form", "text"),
    [
        (b'{"a": [1]}', "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b"{not json", "text", "{not json"),
        ("schön\n".encode(), "text", "schön\n"),
        (b"\x00A", "hex", f"00000000  {'00 41':<47}  .A"),
        (b"", "text", ""),
        ("a\u202eb".encode(), "hex", None),
        ('["\u202e"]'.encode(), "json", '[\n  "\ufffd"\n]'),
    ],
)
def test_auto(payload: bytes, form: str, text: str | None) -> None:
    found = shown(payload)
    assert (found.form, found.hidden, found.note) == (form, 0, "")
    assert text is None or found.text == text


def test_what_is_not_in_the_form_asked_for_is_said() -> None:
    assert shown(b"x", "json").note
    assert shown(b"\xff\x00", "text").text == "\ufffd\ufffd"
    assert shown(b"[" * 100_000, "json").note
    assert shown(b"1" * 10_000, "json").note
    assert shown(b"[1" + b" " * JSON_BYTES + b"]", "json").note


def test_sizes_are_bounded_and_what_is_hidden_is_counted() -> None:
    assert shown(b"a" * (SHOWN_BYTES + 7)).hidden == 7
    assert shown(bytes(HEX_BYTES + 9)).hidden == 9
    large = json.dumps(["x" * 60] * 3_000).encode()
    assert len(shown(large).text) == SHOWN_BYTES
    assert shown(large).hidden > 0


@given(st.binary(max_size=400), st.sampled_from(FORMS))
def test_nothing_in_it_breaks_or_turns_the_page(payload: bytes, form: str) -> None:
    found = shown(payload, form)
    assert all(letter.isprintable() or letter in "\t\r\n" for letter in found.text)
    assert preview(payload).isprintable()
