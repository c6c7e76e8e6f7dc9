"""Docstrings and options' helps open with a verb or a noun; prose in the code avoids the words that documents avoid.

`docs/plain-words.txt` has these words; `make check` looks for them in the documents.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("bench", "journal", "meta_broker", "meta_client", "spark_jobs", "zk")
CLAUSE = re.compile(
    r"(What|Who|Whom|Whose|Whoever|Whatever|Where|Wherever|How|Whether|When|Why|Which|That|As|Of|For|If|It|Its|Is|Has|"
    r"Those|These|Nobody|Somebody|Everybody|Everything|Nothing)\b"
)
DROPPED: Final = re.compile(r"(Only|By|On|In|The same|May|See)\b")  # a help that lacks its noun or verb
PROSE: Final = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


@cache
def avoided() -> re.Pattern[str]:
    """Words to avoid, and their phrases."""
    words = [line.partition("->")[0] for line in (ROOT / "docs/plain-words.txt").read_text().splitlines() if line]
    assert "whom" in words
    return re.compile(rf"(?<![\w-])({'|'.join(words)})(?![\w-])", re.IGNORECASE)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "lineno", 1), text


def helps(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each `help` of an option."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "help":
            first = node.value.values[0] if isinstance(node.value, ast.JoinedStr) else node.value
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.value.lineno, first.value


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_open_with_a_verb_or_a_noun(package: str) -> None:
    found = [(path, line, text) for path in files_of(package) for line, text in docstrings(path)]
    assert found
    wrong = [f"{path.relative_to(ROOT)}:{line}: {text[:80]}" for path, line, text in found if CLAUSE.match(text)]
    assert not wrong, "\n".join(wrong)


def test_helps_of_options_open_with_a_verb_or_a_noun() -> None:
    found = [(path, line, text) for package in PACKAGES for path in files_of(package) for line, text in helps(path)]
    assert len(found) > 100
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text[:80]}"
        for path, line, text in found
        if CLAUSE.match(text) or DROPPED.match(text) or not text[:1].isupper()
    ]
    assert not wrong, "\n".join(wrong)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each comment and string of a file; a string without a space is a key, as on the wire."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in PROSE and " " in token.string:
                yield token.start[0], " ".join(token.string.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_comments_and_texts_have_plain_words(package: str) -> None:
    found = [(path, line, avoided().search(text)) for path in files_of(package) for line, text in prose(path)]
    assert found
    wrong = [f"{path.relative_to(ROOT)}:{line}: {word[0]}" for path, line, word in found if word is not None]
    assert not wrong, "\n".join(wrong)
