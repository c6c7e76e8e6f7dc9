"""A broker's admin port with a token: who has it scrapes, and a reload changes it."""

import urllib.error
import urllib.request
from pathlib import Path

from tests.fixtures.broker import running_broker
from tests.fixtures.replicas import wait_until
from tests.fixtures.scrape import ADMIN, WAIT_S, admin_url, health


def status_of(url: str, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/metrics", headers=headers), timeout=WAIT_S
        ) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_metrics_are_for_those_with_the_token_which_a_reload_changes(tmp_path: Path) -> None:
    first, second = "the first token of all", "the second token of all"
    file = tmp_path / "token"
    file.touch(mode=0o600)
    first, second = first.replace(" ", "-"), second.replace(" ", "-")
    file.write_text(first + "\n")
    with running_broker(tmp_path / "broker", None, config=f'{ADMIN}token_file = "{file}"\n') as broker:
        url = admin_url(broker)
        assert [status_of(url, said) for said in (None, "", second, first)] == [401, 401, 401, 200]
        assert health(url, "ready") == (200, {"ready": True, "why_not": []})
        file.write_text(second + "\n")
        broker.hang_up()
        wait_until(lambda: "reloaded file=" in broker.log, "the reload")
        assert [status_of(url, said) for said in (first, second)] == [401, 200]
        file.write_text("short\n")
        broker.hang_up()
        wait_until(lambda: "holds no token" in broker.log, "a bad file is told")
        assert status_of(url, second) == 200
    assert first not in broker.log
    assert second not in broker.log
