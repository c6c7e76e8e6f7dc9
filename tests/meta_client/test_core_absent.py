"""Without a native core, or with one compiled for another version of this project, Python runs alone."""

import subprocess
import sys

import pytest

ABSENT = "sys.modules[name] = None"
OTHER = "sys.modules[name] = types.ModuleType(name); sys.modules[name].INTERFACE = 0"
CODE = """
import sys, types
name = "meta_client._core"
{}
from meta_client import core
from meta_client.consumer.messages.batch import decode_batch
from meta_client.producer.batch import SendHandle
from meta_client.producer.gathering import Gathering
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.stamping import stamp_ids
from zk.tree.nodes import Partition

assert Gathering(BatchingConfig(), SendHandle).quick_add(None) is None
stamp_ids(frames := bytearray(encode_frame(0, 0, b"one") + encode_frame(0, 0, b"other")), 2, 4096, 100)
batch, broken = decode_batch("orders", Partition(0, 0), 0, memoryview(frames))
print(core.description(), [(message.message_id, message.payload) for message in batch.messages], broken)
"""


@pytest.mark.parametrize("before", [ABSENT, OTHER], ids=["absent", "of another version"])
def test_python_runs_alone(before: str) -> None:
    command = [sys.executable, "-c", CODE.format(before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("Python alone [(4096, b'one'), (4097, b'other')] None\n", "")
