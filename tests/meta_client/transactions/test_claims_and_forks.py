"""Children that are forked while other threads of their parent enter and leave blocks."""

import os
import signal
import threading
from typing import Any, cast

from meta_client.transactions.transaction import Transaction

FORKS = 30
CHILD_S = 30


def claim() -> None:
    """Claim a connection and let go of it, as entering and leaving a block do."""
    transaction = Transaction(cast(Any, None), cast(Any, None), wait=False)
    transaction._claim(object())
    transaction._let_go()


def test_a_child_enters_its_first_block() -> None:
    """With a lock, nearly each of them had a locked copy."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            claim()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(FORKS):
            if (child := os.fork()) == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(CHILD_S)
                claim()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        ended.set()
        for thread in threads:
            thread.join()
