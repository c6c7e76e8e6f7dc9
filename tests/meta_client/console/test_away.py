"""Pages while ZooKeeper gives no answer: each says that it knows nothing, and none fails."""

from meta_client import Client
from meta_client.console.settings import ConsoleSettings
from tests.meta_client.console.conftest import open_console
from zk.embedded.chroot import Chroot

BRANCH = "broker=0&key=XID:1:67:62:q"
PAGES = (
    *("/", "/topics", "/topics/orders", "/topics/orders/messages", "/topics/orders/messages?key=k"),
    *("/topics/orders/0-0/7", "/groups", "/groups/g", "/groups/g/reset", "/replication", "/journal"),
    *("/transactions", "/transactions/diagnosis", f"/transactions/branch?{BRANCH}", f"/transactions/verdict?{BRANCH}"),
)


def test_each_page_says_that_it_knows_nothing(zookeeper: Chroot) -> None:
    with Client(zookeeper.connect) as client:
        client.session.close()
        with open_console(ConsoleSettings(client=client, who="ann")) as browser:
            answers = {path: browser.get(path) for path in PAGES}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(PAGES, 200)
    for path, answer in answers.items():
        assert "unknown" in answer.text.lower() or "is it running?" in answer.text, path
