"""Exporters that fail, hang, or can't be made, as a collector that is away makes them: a command ends all the same."""

import time
from pathlib import Path

import pytest

from meta_client.otel import exporting as module
from meta_client.otel.exporting import NoExporter, exporting
from meta_client.tracing import TRACING

EXPORTERS = """
import time
from opentelemetry.sdk.trace.export import SpanExporter

class Hangs(SpanExporter):
    def export(self, spans):
        time.sleep(1000)

class Raises(SpanExporter):
    def shutdown(self):
        raise RuntimeError("no collector")

class Unmade(SpanExporter):
    def __init__(self):
        raise ValueError("no endpoint")
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_exporters.py").write_text(EXPORTERS)
    about = tmp_path / "their_exporters-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-exporters\nVersion: 1.0\n")
    points = [f"{each.lower()}=their_exporters:{each}" for each in ("Hangs", "Raises", "Unmade")]
    (about / "entry_points.txt").write_text("\n".join([f"[{module.EXPORTERS}]", *points, "lost=no_module:X"]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "END_S_MAX", 0.3)


@pytest.mark.parametrize(("name", "why"), [("unmade", "no endpoint"), ("lost", "no_module")])
def test_an_exporter_that_can_t_be_made_is_refused(name: str, why: str) -> None:
    with pytest.raises(NoExporter, match=f"exporter '{name}' can't be used: .*{why}"), exporting(name):
        pass
    assert TRACING.hooks is None


@pytest.mark.parametrize(("name", "told"), [("hangs", "takes longer"), ("raises", "no collector")])
def test_a_command_ends_without_its_exporter(name: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    with exporting(name):
        assert TRACING.hooks is not None
        with TRACING.hooks.sending("orders"):
            pass
    assert time.monotonic() - began < 20
    assert told in caplog.text
