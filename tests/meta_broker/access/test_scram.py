"""SCRAM: RFC 7677's example, each side proves itself, strangers' bytes, and users that do not exist."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_broker.access.scram import Login, LoginRefused, Verifier, Verifiers
from meta_client.protocol.scram import ITERATIONS_MAX, MECHANISM, BrokerNotProven, login

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
C_NONCE, S_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
WORDS = (
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


def rfc_verifier() -> Verifier:
    from scramp import ScramMechanism

    salt, stored_key, server_key, count = ScramMechanism(MECHANISM).make_auth_info("pencil", 4096, SALT)
    return Verifier(count, salt, stored_key, server_key)


KNOWN = Verifiers({"user": rfc_verifier(), "shop": Verifier.of("s3cret, with = and ü")}, b"of a test")


def talk(user: str, password: str, verifiers: Verifiers = KNOWN) -> tuple[Login, list[bytes]]:
    """Both sides to the end; what was said."""
    broker, client = Login(verifiers), login(user, password)
    said = [next(client)]
    try:
        while True:
            said.append(broker.answer(said[-1]))
            said.append(client.send(said[-1]))
    except StopIteration:
        return broker, said


def test_the_example_of_the_rfc() -> None:
    client, broker = login("user", "pencil", C_NONCE), Login(KNOWN, S_NONCE)
    assert next(client) == WORDS[0]
    assert broker.answer(WORDS[0]) == WORDS[1]
    assert client.send(WORDS[1]) == WORDS[2]
    assert not broker.is_done
    assert broker.answer(WORDS[2]) == WORDS[3]
    assert broker.is_done
    with pytest.raises(LoginRefused, match="the login is over"):
        broker.answer(WORDS[2])
    with pytest.raises(StopIteration):
        client.send(WORDS[3])


def test_both_sides_know_each_other_and_the_password_is_not_said() -> None:
    broker, said = talk("shop", "s3cret, with = and ü")
    assert (broker.user, broker.is_done) == ("shop", True)
    assert not any(b"s3cret" in words for words in said)


@pytest.mark.parametrize(("user", "password"), [("shop", "wrong"), ("nobody", "s3cret, with = and ü"), ("user", "x")])
def test_a_wrong_password_and_an_unknown_user_are_refused(user: str, password: str) -> None:
    with pytest.raises(LoginRefused):
        talk(user, password)


def test_a_user_that_does_not_exist_is_answered_like_one_that_does() -> None:
    def first(user: str) -> dict[bytes, bytes]:
        answer = Login(KNOWN).answer(f"n,,n={user},r=abc".encode())
        return dict(part.split(b"=", 1) for part in answer.split(b","))

    real, made_up = first("shop"), first("nobody")
    assert real.keys() == made_up.keys()
    assert len(base64.b64decode(real[b"s"])) == len(base64.b64decode(made_up[b"s"])) == 16
    assert first("nobody")[b"s"] == made_up[b"s"] != first("nobody2")[b"s"]  # each time the same


def test_users_that_do_not_exist_have_the_same_variety_as_those_that_do() -> None:
    """One whose verifier is of another kind, as from another program, is not told from made-up ones by that."""
    odd = Verifier.of("x", 5000)._replace(salt=b"twelve bytes")
    verifiers = Verifiers({"odd": odd} | {f"user-{number}": Verifier.of("x", 4096) for number in range(3)}, b"secret")
    kinds = {(made.iterations, len(made.salt)) for made in (verifiers.find(f"nobody-{n}") for n in range(200))}
    assert kinds == {(5000, 12), (4096, 16)}
    assert len({verifiers.find("nobody")[:2] for _ in range(10)}) == 1, "each time the same"


@pytest.mark.parametrize(
    "last", [b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl94G4=", b"v=", b"e=invalid-proof", b"", b"\xff", b"v=x,y=z"]
)
def test_a_broker_that_does_not_know_the_password_is_found_out(last: bytes) -> None:
    client = login("user", "pencil", C_NONCE)
    next(client)
    client.send(WORDS[1])
    with pytest.raises(BrokerNotProven):
        client.send(last)


@pytest.mark.parametrize("count", [ITERATIONS_MAX + 1, 1, 0, -1])
def test_a_broker_that_asks_for_too_much_or_too_little_work_is_left(count: int) -> None:
    client = login("user", "pencil", C_NONCE)
    next(client)
    with pytest.raises(BrokerNotProven):
        client.send(WORDS[1].replace(b"i=4096", b"i=%d" % count))


@given(
    st.lists(st.binary(max_size=200) | st.sampled_from(WORDS) | st.text("nrcspi=,*abcé").map(str.encode), max_size=4)
)
def test_whatever_a_stranger_says_is_refused_in_one_way(words: list[bytes]) -> None:
    broker = Login(KNOWN, S_NONCE)
    try:
        for each in words:
            broker.answer(each)
    except LoginRefused:
        pass
    assert broker.is_done == (words[:2] == [WORDS[0], WORDS[2]])


@given(st.binary(max_size=200) | st.text("rsi=,0123abc").map(str.encode))
def test_whatever_a_broker_says_a_client_ends_in_one_way(answer: bytes) -> None:
    client = login("user", "pencil", C_NONCE)
    next(client)
    with pytest.raises(BrokerNotProven):
        client.send(answer)


@given(st.text(max_size=80) | st.integers(0, 120).map(lambda size: str(rfc_verifier())[:size]))
def test_a_text_that_is_no_verifier_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"^it is no verifier: `metaq access add` prints one, SCRAM-SHA-256\$<"):
        Verifier.parse(text)
