"""A relay that kills itself, with SIGKILL, when its batch reaches a given step. Run by test_crashes."""

import os
import signal

from meta_client import Client
from meta_client.outbox import Relay
from meta_client.transactions import CommitStep, TransactionConfig


def main(url: str, zookeeper: str, step_name: str) -> None:
    def observe(step: CommitStep, gtrid: str) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    with Client(zookeeper, transactions=TransactionConfig(observer=observe)) as client:
        relay = Relay(client, url)
        while relay.run_pass():
            pass
