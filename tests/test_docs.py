"""Every code block of the README and of docs/ is run, against a real broker and a real PostgreSQL.

Blocks of one document run in order, in one directory. A toml block is read as a broker reads its configuration. A
line that starts a server until Ctrl-C (`metaq dev`) or a make target is not run to its end: the first is checked
against the command's own options, the second with make's dry run (what the targets do is what this suite and the
demo's own test run).
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from meta_broker.access.quota import Quota
from meta_broker.config.broker_config import TopicConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.config.loading import load
from meta_broker.config.sections import ReplicationSection, RetentionSection, SlaveSection, ZooKeeperSection
from meta_broker.config.security_sections import AccessSection, AdminSection, TlsSection
from tests import scenario_table
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.metaq_program import metaq_on_path
from tests.fixtures.postgres import Database
from tests.fixtures.spark_jvm import SparkJvm
from zk.embedded.chroot import Chroot

ROOT = Path(__file__).parent.parent
README, TUTORIAL = ROOT / "README.md", ROOT / "docs/tutorial.md"
DOCUMENTS = [README, *sorted(it for it in (ROOT / "docs").rglob("*.md") if it.parent.name != "reference")]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)  # in a list, too
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "broker": BrokerSection,
    "zookeeper": ZooKeeperSection,
    "address_quota": Quota,
    "retention": RetentionSection,
    "replication": ReplicationSection,
    "slave": SlaveSection,
    "admin": AdminSection,
    "tls": TlsSection,
    "access": AccessSection,
    "topics.NAME": TopicConfig,
}
FOREVER = re.compile(r"^(metaq dev)\b.*$", re.MULTILINE)
MAKE = re.compile(r"^make ", re.MULTILINE)
SPARK = re.compile(r"\bspark_session\b|^metaq (?:audit|certify|reconcile) ", re.MULTILINE)


def blocks(document: Path) -> list[tuple[str, str]]:
    return [(language, textwrap.dedent(text)) for _, language, text in BLOCK.findall(document.read_text())]


FOLLOWED = [document for document in DOCUMENTS if blocks(document) and document != TUTORIAL]
ON_SPARK = [document for document in FOLLOWED if any(SPARK.search(text) for _, text in blocks(document))]


@pytest.mark.parametrize("document", [it for it in FOLLOWED if it not in ON_SPARK], ids=lambda path: path.name)
def test_every_block_runs(
    document: Path, tmp_path: Path, broker: BrokerProcess, zookeeper: Chroot, database: Database
) -> None:
    """Commands are forked from a process that has imported metaq; in the README and the tutorial they start cold."""
    (programs := tmp_path / "bin").mkdir()
    with metaq_on_path(programs) as path:
        follow([document], tmp_path, broker, zookeeper, database, {"PATH": path})


@pytest.fixture
def jvm(program_jvm: SparkJvm) -> dict[str, str]:
    """Variables of the JVM that documents share. Takes away what another document's queries have left where relative
    paths begin."""
    shutil.rmtree(program_jvm.directory / "checkpoint", ignore_errors=True)
    return program_jvm.variables


@pytest.mark.parametrize("document", ON_SPARK, ids=lambda path: path.name)
def test_every_block_runs_on_spark(
    document: Path, tmp_path: Path, broker: BrokerProcess, zookeeper: Chroot, database: Database, jvm: dict[str, str]
) -> None:
    follow([document], tmp_path, broker, zookeeper, database, jvm)


def test_readme_and_tutorial_can_be_followed_one_after_the_other_and_again(
    tmp_path: Path, broker: BrokerProcess, zookeeper: Chroot, database: Database
) -> None:
    """Both run on one database, with one broker, in one directory."""
    follow([TUTORIAL, README, TUTORIAL], tmp_path, broker, zookeeper, database)


def follow(
    documents: list[Path],
    tmp_path: Path,
    broker: BrokerProcess,
    zookeeper: Chroot,
    database: Database,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run every block of *documents*, with *variables* in its environment."""
    work = tmp_path / "work"
    work.mkdir()
    environment = os.environ | {
        "METAQ_ZK": zookeeper.connect,
        "METAQ_DATA": str(broker.data),
        "METAQ_BROKER": f"127.0.0.1:{broker.port}",
        "DATABASE_URL": database.dsn,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        # As an environment has it into which this tree is installed; this one may have been installed from another.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "meta_broker.testing.plugin",
        **variables,
    }
    for document, (language, text) in [(it, block) for it in documents for block in blocks(it)]:
        if language == "toml":  # a piece of a broker's configuration file
            path = work / "piece.toml"
            path.write_text(text + '\n[topics."*"]\n')
            load(path, data=work / "data", broker_id=0, port=0)
            continue
        if language == "sh":
            script = FOREVER.sub(r"\1 --help >/dev/null", MAKE.sub(f"make -C '{ROOT}' --dry-run ", text))
            command = [shutil.which("bash") or "/bin/bash", "-euo", "pipefail", "-c", script]
        else:
            assert language == "python", f"{document.name}: no test runs a {language} block"
            command = [sys.executable, "-c", text]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"{document.name}:\n{text}\n{done.stdout}{done.stderr}"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=500
    )
    assert (done.returncode, done.stderr) == (0, "")
    reference = (tmp_path / "site/reference/client/index.html").read_text()
    assert "tpc_prepare" in reference, "docstrings are not read"


def test_links_lead_somewhere() -> None:
    for document in [*DOCUMENTS, ROOT / "journal/FORMAT.md", ROOT / "meta_client/protocol/PROTOCOL.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_scenarios_are_all_there_with_the_tests_that_show_them() -> None:
    """Without a test, a scenario has a remark that says why."""
    document = scenario_table.DOCUMENT.read_text()
    assert document == scenario_table.updated(document), "run python -m tests.scenario_table"
    rows = scenario_table.ROW.findall(document)
    last = {"U": 27, "T": 9, "A": 21, "B": 11, "H": 11}
    assert [row[0] for row in rows] == [f"{kind}{n:02d}" for kind in last for n in range(1, last[kind] + 1)]
    assert scenario_table.shown_by().keys() <= {row[0] for row in rows}
    assert [name for name, _, tests, remark in rows if not tests and not remark.startswith("does not apply: ")] == []


def test_where_to_change_what_names_what_is_there() -> None:
    section = (
        (ROOT / "docs/architecture.md").read_text().partition("## Where to change what\n")[2].partition("\n## ")[0]
    )
    rows = section.strip().splitlines()[2:]
    assert len(rows) >= 8
    for row in rows:
        named = re.findall(r"`([\w/]+/(?:\w+\.py)?)(?:::(\w+))?`", row)
        assert named, row
        for path, symbol in named:
            assert (ROOT / path).exists(), path
            found = rf"^ *(?:(?:async )?def|class) {symbol}\b|^ *{symbol}(?:: [^=]+)? = "
            assert not symbol or re.search(found, (ROOT / path).read_text(), re.MULTILINE), f"{path}: {symbol}"


def test_each_line_of_what_happens_when_names_a_test_that_is_there() -> None:
    lines = (ROOT / "docs/what-happens-when.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and "what clients see" not in line]
    assert len(rows) > 20
    for row in rows:
        named = re.search(r"`([\w/]+\.py)::(\w+)` \|$", row)
        assert named is not None, row
        assert f"def {named[2]}(" in (ROOT / "tests" / named[1]).read_text(), row


def test_the_configuration_reference_has_every_key_and_its_default() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()
    parts = dict(re.findall(r"^## `\[([\w.]+)\]`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for name, section in SECTIONS.items():
        defaults = {it.name: it.default for it in msgspec.structs.fields(section)}
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", parts[name], re.MULTILINE)
        assert sorted(key for key, _ in rows) == sorted(defaults), name
        for key, told in rows:
            assert told.strip("`") == as_toml(defaults[key]), f"{name}.{key}"


def as_toml(value: object) -> str:
    """*value* as the configuration reference writes it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case ():
            return "[]"
    return f"{value:g}" if isinstance(value, float) else str(value)
