"""The native core decodes every stream as Python alone does: the same commands, and the same errors."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meta_client import core
from meta_client.protocol.decoder import RequestDecoder, ResponseDecoder
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.limits import Limits

LIMITS = Limits(line_bytes_max=60, body_bytes_max=4)
XID = b"XID:1:67:62:q"
# What stands in a line of a branch, and what is nearly that.
NUMBERS = [b"0", b"3", b"5", b"-1", b"-0", b"007", b"2147483647", b"2147483648", b"-2147483648", b"99999999999", b"+1"]
WORDS = [b"t", XID, b"XID:1:6x:62:q", b"TX:s:1", b"null", b"BEGIN", b"COMMIT_TWO_PHASE", b"begin", b"q-1", b"", b"\xff"]
ODD = [b"\r", b"1_0", b"12\r", b"-", b"x" * 50]
tokens = st.sampled_from(NUMBERS + WORDS + ODD)
put = st.tuples(st.just(b"put"), st.just(b"t"), *[st.sampled_from(NUMBERS)] * 4, st.sampled_from(WORDS), tokens)
verb = st.tuples(st.just(b"transaction"), st.sampled_from(WORDS), tokens, st.sampled_from(WORDS), tokens)
result = st.tuples(st.just(b"result"), *[st.sampled_from(NUMBERS)] * 3)
any_line = st.lists(tokens, max_size=9).flatmap(
    lambda rest: st.sampled_from([b"put", b"transaction", b"result", b"version", b"puts"]).map(
        lambda word: (word, *rest)
    )
)
ending = st.sampled_from([b"\r\n", b" \r\n", b"\n", b""])
body = st.sampled_from([b"", b"abc", b"\r\n345", b"12345"])
pieces = st.builds(
    lambda words, more, end, data: b" ".join([*words, *more]) + end + data,
    st.one_of(put, verb, result, any_line),
    st.lists(tokens, max_size=2),
    ending,
    body,
)


def decoded(
    make: Callable[[Limits], RequestDecoder | ResponseDecoder], stream: bytes, cut: int
) -> tuple[list[object], str]:
    decoder, commands = make(LIMITS), list[object]()
    for chunk in (stream[:cut], stream[cut:]):
        try:
            commands += decoder.receive_data(chunk)
        except RemoteProtocolError as error:
            return [*commands, *decoder.completed_before_failure], str(error)
    return commands, ""


@pytest.mark.skipif(core.core is None, reason="the native core was not compiled")
@pytest.mark.parametrize("make", [RequestDecoder, ResponseDecoder])
@given(lines=st.lists(pieces, max_size=4), cut=st.integers(0, 80))
@example(lines=[b"put t 3 3 0 5 " + XID + b" -1\r\nabc"] * 2, cut=80)
@example(lines=[b"put t 3 3 0 -1 XID:1:6x:62:q 1\r\nabc"], cut=80)
@example(lines=[b"transaction " + XID + b" s BEGIN 5 q 7\r\n", b"transaction null s RECOVER 7\r\n"], cut=5)
@example(lines=[b"transaction " + XID + b" s BEGIN 5 7\r\n", b"transaction " + XID + b" s BEGIN -5 7\r\n"], cut=80)
@example(lines=[b"transaction " + XID + b" s BEGIN 99999999999 7\r\n"], cut=80)
@example(lines=[b"result 200 3 -5\r\nabc", b"result 200 0 2147483647\r\n"], cut=80)
@example(lines=[b"result 200 0 2147483648\r\n"], cut=80)
@example(lines=[b"result 200 5 1\r\n12345", b"result 200 0 2\r\n"], cut=80)
@example(lines=[b"put t 3 5 0 5 " + XID + b" 1\r\n12345", b"put t 3 0 0 5 " + XID + b" 2\r\n"], cut=80)
@example(lines=[b"transaction " + XID + b" " + b"s" * 24 + b" BEGIN q 1\r\n"], cut=80)
@example(lines=[b"transaction " + XID + b" " + b"s" * 25 + b" BEGIN q 1\r\n"], cut=80)
def test_as_python_alone(
    make: Callable[[Limits], RequestDecoder | ResponseDecoder], lines: list[bytes], cut: int
) -> None:
    stream = b"".join(lines)
    natively = decoded(make, stream, cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "core", None)
        assert decoded(make, stream, cut) == natively


@pytest.mark.skipif(core.core is None, reason="the native core was not compiled")
def test_errors_of_the_key_other_than_its_form_are_raised() -> None:
    def broken(text: str) -> object:
        raise MemoryError(text)

    line = b"transaction " + XID + b" s BEGIN 7\r\n"
    with pytest.raises(MemoryError):
        core.core.branch_requests(dict, dict, broken, {b"BEGIN": 1}, line, 0, [], 100, 100)
