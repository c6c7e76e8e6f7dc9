"""`metaq doctor zookeeper`: the nodes in ZooKeeper that metaq skips, and the repair of its own."""

from typing import Final

import click

from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.doctor.zookeeper import examine, open_nodes, repair
from meta_client.operations.text import tell
from zk.brokers.cluster_id import read_cluster_id

OPEN_ADVICE: Final = "made without a login: set its access rules, or delete it once nobody uses it"
FOUND: Final = 1  # exit status: nodes that can't be read are left


@click.group()
def doctor() -> None:
    """Examine a cluster, and repair what is certain.

    \b
      metaq doctor zookeeper
      metaq doctor zookeeper --apply
    """


@doctor.command()
@click.option("--apply", "applies", is_flag=True, help="Repair metaq's own nodes. Without it, nothing is changed.")
@zk_option
@json_option
def zookeeper(applies: bool, zk: str, as_json: bool) -> None:
    """List the nodes in ZooKeeper that can't be read, which every metaq process skips.

    --apply deletes those that only metaq writes and makes again, the epochs of partitions' owners. It never touches
    what a genuine client may have written: each of those comes with what to do.

    With a login (METAQ_ZK_USER, METAQ_ZK_PASSWORD_FILE) it also lists the nodes that anybody may change.

    \b
      metaq doctor zookeeper --json | jq -r .path

    \b
    Exit status: 0  every node reads, or was repaired
                 1  some do not, or there are none
                 2  ZooKeeper could not be asked
    """
    with connected(zk) as client:
        root = client.session.paths.root or "/"
        if client.session.read(root) is None:
            tell(f"error: ZooKeeper at {zk} has no {root}: no broker was ever registered there, is it the right one?")
            click.get_current_context().exit(FOUND)
        found = list(examine(client.session))
        done = repair(client.session, found) if applies else set()
        cluster_id = None if found else read_cluster_id(client.session)
        opened = list(open_nodes(client.session)) if client.session.security.user is not None else []
    rows = [
        {
            "path": it.path,
            "problem": it.problem,
            "ours": it.is_ours,
            "repaired": it.path in done,
            "advice": None if it.path in done else it.advice,
        }
        for it in found
    ]
    rows += [
        {"path": path, "problem": "anybody may change it", "ours": False, "repaired": False, "advice": OPEN_ADVICE}
        for path in opened
    ]
    named = f", of cluster {cluster_id}," if cluster_id else ""
    print_rows(rows, as_json=as_json, empty=f"every node in ZooKeeper{named} can be read")
    if len(done) < len(rows):
        click.get_current_context().exit(FOUND)
