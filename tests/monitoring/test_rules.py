"""Rules, dashboard and page of docs/monitoring agree with each other, with the metrics and with the commands."""

import json
import re
import shlex
import subprocess
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from meta_broker.metrics.families import FAMILIES as BROKER
from meta_client.admin.families import MetricKind
from meta_client.admin.log_samples import FAMILIES as LOG
from meta_client.cli.main import GROUP
from meta_client.coordinator.metrics import FAMILIES as COORDINATOR
from meta_client.metrics import FAMILIES as CONSUMERS
from meta_client.operations.group_watch import FAMILIES as GROUPS
from meta_client.outbox.relay_metrics import FAMILIES as RELAY
from meta_client.transactions.resolver_metrics import FAMILIES as RESOLVER
from tests.fixtures.promtool import ALERT, RULES, promtool

PAGE = RULES.with_name("alerts.md").read_text()
DASHBOARD = json.loads(RULES.with_name("dashboard.json").read_text())
NAME = re.compile(r"\bmetaq_\w+")
FAMILIES = {family.name: family for family in (*BROKER, *LOG, *CONSUMERS, *GROUPS, *RESOLVER, *RELAY, *COORDINATOR)}
HISTOGRAM = ("_bucket", "_sum", "_count")


def exported() -> dict[str, set[str]]:
    """Every name that a process exports, with its labels."""
    found: dict[str, set[str]] = {}
    for family in FAMILIES.values():
        ends = HISTOGRAM if family.kind is MetricKind.HISTOGRAM else ("",)
        for end in ends:
            found[family.name + end] = {*family.labels, "job", "instance"} | ({"le"} if end == "_bucket" else set())
    found["metaq_broker_info"] |= {"role"}
    return found


def expressions() -> list[str]:
    """The expressions of the dashboard, its variables' values put in."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    assert len(found) > 40
    return [text.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*") for text in found]


def test_rules_and_expressions_of_the_dashboard_are_sound(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    panels = tmp_path / "panels.json"
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    for path in (RULES, panels):
        done = subprocess.run([promtool(), "check", "rules", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_name_and_label_is_exported() -> None:
    names = exported()
    for text in [RULES.read_text(), *expressions()]:
        assert set(NAME.findall(text)) <= names.keys(), set(NAME.findall(text)) - names.keys()
        for name, inside in re.findall(r"(metaq_\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)\s*=", inside)) <= names[name], (name, inside)


def test_every_panel_has_a_place_and_its_legend_names_labels() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at: dict[str, int] = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            known = {label for name in NAME.findall(target["expr"]) for label in exported().get(name, ())}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, target


def test_the_page_tells_of_every_alert_what_to_do() -> None:
    alerts = ALERT.findall(RULES.read_text())
    assert len(alerts) == len(set(alerts)) > 20
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == alerts


def commands() -> set[str]:
    """Commands of metaq that the page and the rules name."""
    found = set(re.findall(r"`(metaq [^`]+)`", PAGE)) | set(re.findall(r"^(metaq .+)$", PAGE, re.MULTILINE))
    return found | {
        text.strip('"') for text in re.findall(r"action: \"?(metaq .+?)\"?$", RULES.read_text(), re.MULTILINE)
    }


def test_every_command_is_there_with_its_options() -> None:
    assert len(commands()) > 10
    top = {point.name: point for point in entry_points(group=GROUP)}
    for text in commands():
        words = shlex.split(re.sub(r"\{\{.*?\}\}", "NAME", text))[1:]
        command: Any = top[words.pop(0)].load()
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= known | {"--help"}, text
        places = [word for word in words if not word.startswith("-")]
        assert not places or any(parameter.expose_value for parameter in command.params), text
