"""Published files: the wheel and the source distribution, built, installed and started elsewhere."""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from meta_broker.version import PRODUCT_VERSION

PACKAGES = {"journal", "meta_broker", "meta_client", "spark_jobs", "zk"}
ROOT = Path(__file__).parents[1]
HOOKS = "from hatchling.build import build_sdist, build_wheel; import sys; print({function}(sys.argv[1]))"


def built(function: str, source: Path, into: Path, **variables: str) -> Path:
    """The archive that hatchling makes of *source*, as pip would have it made, with more environment variables."""
    command = [sys.executable, "-c", HOOKS.format(function=function), str(into)]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | variables  # no bytecode of the build hook in *source*
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    return built("build_sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def sdist(archive: Path, tmp_path: Path) -> Path:
    """The source distribution, unpacked for one test: what builds there leaves files behind."""
    shutil.unpack_archive(archive, into := tmp_path / "sdist")
    return into / archive.name.removesuffix(".tar.gz")


def test_the_source_distribution_is_the_project_and_nothing_else(sdist: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("this is no git checkout: nothing says what belongs to the project")
    unpacked = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    assert unpacked - {"PKG-INFO"} <= set(tracked.stdout.splitlines())
    assert {"LICENSE", "README.md", "pyproject.toml", "Makefile"} <= unpacked


def can_compile(into: Path) -> bool:
    """True if there is a C compiler, and what Python extensions need."""
    source = into / "empty.c"
    source.write_text("#include <Python.h>\n")
    compiler = [*shlex.split(sysconfig.get_config_var("LDSHARED")), "-fPIC", f"-I{sysconfig.get_path('include')}"]
    try:
        return not subprocess.run(
            [*compiler, source, "-o", into / "empty.so"], capture_output=True, check=False
        ).returncode
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("compiler", ["", "/no/compiler here", "false"], ids=["a compiler", "none", "one that fails"])
def test_the_wheel_runs_where_only_its_dependencies_are(sdist: Path, tmp_path: Path, compiler: str) -> None:
    """The wheel is built from the source distribution, which must therefore be complete; with the native core where it
    can be compiled."""
    if is_native := not compiler:
        if not can_compile(tmp_path):
            pytest.skip("there is no C compiler, or no Python.h: install them for the native core")
        wheel = built("build_wheel", sdist, tmp_path)
    else:
        wheel = built("build_wheel", sdist, tmp_path, LDSHARED=compiler)
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    compiled = [name for name in names if name.endswith((".so", ".pyd", ".dylib"))]
    assert compiled == [f"meta_client/_core{sysconfig.get_config_var('EXT_SUFFIX')}"] * is_native
    assert wheel.name.endswith("-py3-none-any.whl") is not is_native
    top = {name.partition("/")[0] for name in names}
    assert top == {*PACKAGES, f"metaq_broker-{PRODUCT_VERSION}.dist-info"}
    assert {f"{name}/py.typed" for name in PACKAGES} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)

    home = tmp_path / "home"
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    code = "import meta_client, sys; print(meta_client.__file__); from meta_client.cli.main import main; main()"

    def said_to(option: str) -> list[str]:
        command = [str(home / "bin/python"), "-c", code, option]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert said_to("--version")[1] == f"metaq {PRODUCT_VERSION}, {'native core' if is_native else 'Python alone'}"
    where, *said = said_to("--help")
    assert Path(where).is_relative_to(site)
    for name in ("broker", "produce", "consume", "txn", "audit", "journal"):
        assert any(line.split()[:1] == [name] for line in said), name


def modules_of_extras() -> set[str]:
    """Modules here that come with an extra alone: not with metaq's dependencies, nor with theirs."""
    wanted, base = ["metaq-broker"], set()
    while wanted:
        base.add(name := wanted.pop())
        for requirement in importlib.metadata.requires(name) or ():
            needed = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
            if "extra ==" not in requirement and needed not in base and is_installed(needed):
                wanted.append(needed)
    assert {"kazoo", "uvloop"} <= base
    owners = {
        module: {name.lower() for name in names}
        for module, names in importlib.metadata.packages_distributions().items()
    }
    return {module for module, names in owners.items() if not names & base}


def is_installed(name: str) -> bool:
    try:
        return importlib.metadata.distribution(name) is not None
    except importlib.metadata.PackageNotFoundError:
        return False


IMPORTED: Final = """
import importlib, sys
for name in sys.argv[1].split():
    sys.modules[name] = None  # as if it were not installed
for name in ("meta_client", "meta_client.aio", "meta_broker.app.broker", "meta_broker.testing.memory.cluster"):
    module = importlib.import_module(name)
    for public in set(getattr(module, "__all__", ())) - {"Outbox", "TransactionOffsetStore"}:
        getattr(module, public)
"""


def test_client_and_broker_need_no_extra() -> None:
    absent = modules_of_extras()
    assert {"sqlalchemy", "psycopg", "numpy", "pyspark"} <= absent
    command = [sys.executable, "-c", IMPORTED, " ".join(absent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_extra_mysql_brings_what_mysql_8_has_a_login_without_tls_encrypted_by() -> None:
    wanted = {text.partition(";")[0].strip() for text in importlib.metadata.requires("metaq-broker") or ()}
    assert "pymysql[rsa]>=1.1" in wanted
    of_rsa = [text for text in importlib.metadata.requires("pymysql") or () if '"rsa"' in text]
    assert any(text.startswith("cryptography") for text in of_rsa), of_rsa


def python_of(version: str) -> Path | None:
    """An interpreter of *version* on this machine, on the PATH or of pyenv; None: there is none."""
    named = shutil.which(f"python{version}")
    found = [Path(named)] if named else []
    for path in found + sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")):
        code = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return None


SENT: Final = """
from meta_broker.testing.memory.cluster import MemoryCluster
with MemoryCluster({"orders": 2}) as cluster, cluster.client() as client:
    client.producer().send("orders", b"hello")
    consumer = client.consumer("billing")
    consumer.subscribe("orders")
    with consumer:
        print([message.payload for message in consumer.fetch(1, timeout_s=30)])
"""


EVERY_COMMAND: Final = """
from importlib.metadata import entry_points
from click.testing import CliRunner
from meta_client.cli.main import metaq
names = {point.name for point in entry_points(group="metaq.commands")}
assert len(names) > 20
for name in sorted(names):
    done = CliRunner().invoke(metaq, [name, "--help"])
    assert done.exit_code == 0 or "pip install 'metaq-broker[" in done.output, (name, done.output, done.exception)
"""


@pytest.mark.timeout(300)
def test_it_runs_with_the_oldest_versions_that_it_allows(sdist: Path, tmp_path: Path) -> None:
    """Other packages of a user's hold them back. `make test-oldest` runs many more tests with these."""
    venv.create(home := tmp_path / "home", with_pip=False)
    uv = Path(sys.executable).with_name("uv")
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", home / "bin/python"]
    done = subprocess.run(
        [*install, "--resolution", "lowest-direct", f"{sdist}[sql]"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if "client error" in done.stderr or "dns error" in done.stderr:
        pytest.skip(f"the package index can't be reached: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    for code in (SENT, EVERY_COMMAND):
        done = subprocess.run(
            [home / "bin/python", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.timeout(300)
def test_it_installs_and_runs_on_each_python_that_is_here(version: str, sdist: Path, tmp_path: Path) -> None:
    """From its source distribution, with its dependencies from the package index, as a user installs it."""
    if (python := python_of(version)) is None:
        pytest.skip(f"there is no Python {version}")
    home = tmp_path / "home"
    subprocess.run([python, "-m", "venv", home], check=True, timeout=60)
    install: list[str | Path] = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    reached = subprocess.run([*install, "hatchling"], capture_output=True, text=True, timeout=120, check=False)
    if reached.returncode:
        pytest.skip(f"the package index can't be reached: {reached.stderr[-200:]}")
    done = subprocess.run(
        [*install, "--no-build-isolation", sdist], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    for words, said in (
        (["metaq", "--version"], f"metaq {PRODUCT_VERSION}, "),
        (["python", "-W", "error", "-c", SENT], "[b'hello']"),
    ):
        command = [str(home / "bin" / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, said in done.stdout) == (0, True), done.stdout + done.stderr
