"""The command line in this process, on the test's chroot."""

import sys
from collections.abc import Callable

import pytest

from meta_client.cli.main import main
from zk.embedded.chroot import Chroot

Metaq = Callable[..., tuple[int, str, str]]


@pytest.fixture
def metaq(zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Metaq:
    """Run `metaq` in this process. Returns status, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["metaq", *words, "--zk", zookeeper.connect])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run
