"""Compiles the native core, meta_client/native/, into a wheel where there is a compiler: elsewhere it is Python alone.

An editable installation gets it beside its source.
"""

import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILE_S = 120.0


class CoreHook(BuildHookInterface[Any]):
    """Hatchling calls `initialize` before it makes a wheel, and `finalize` after."""

    _made: "tempfile.TemporaryDirectory[str] | None" = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the core and add it to the wheel; do nothing where that fails."""
        name = "_core" + (sysconfig.get_config_var("EXT_SUFFIX") or "")
        package = Path(self.root, "meta_client")
        self._made = tempfile.TemporaryDirectory()
        into = Path(self._made.name, name)
        if (why := _compile(package / "native", into)) is not None:
            self.app.display_info(f"no native core: {why}")
            if version == "editable":
                (package / name).unlink(missing_ok=True)  # of an earlier source
            return
        if version == "editable":
            beside = package / f"{name}.new"
            beside.write_bytes(into.read_bytes())
            beside.replace(package / name)  # a process that has the old one mapped keeps it
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(into)] = f"meta_client/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if self._made is not None:
            self._made.cleanup()


def _compile(native: Path, into: Path) -> str | None:
    """Compile the sources in *native* for this interpreter; return why they can't be."""
    if os.name != "posix":
        return "only compiled on Unix"
    link = shlex.split(os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED") or "cc -shared")
    flags = ["-O2", "-fPIC", "-fvisibility=hidden", f"-I{sysconfig.get_path('include')}"]
    command = [*link, *flags, *map(str, sorted(native.glob("*.c"))), "-o", str(into)]
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that built the interpreter
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or f"{command[0]}: exit status {done.returncode}" if done.returncode else None
