"""The embedded server's configuration and command line, as text. Pure."""

import re
from collections.abc import Sequence
from pathlib import Path

TICK_MS = 250  # sessions expire on tick boundaries: a test's 2 s session is gone within 2.25 s
SESSION_TIMEOUT_MS_MIN = 1_000
SESSION_TIMEOUT_MS_MAX = 120_000  # the default, 20 ticks, would silently cut a client's 30 s down to 5 s
CONNECTIONS_PER_ADDRESS_MAX = 1_000  # all clients share 127.0.0.1; still a bound on what one leak can take
HEAP_MIB = 128
LOG_PREALLOCATED_KIB = 4_096  # the default, 64 MiB, is for disks of a real ensemble

# The jars ZooKeeper needs of the three hundred that Spark ships: all of them would double the start time and take half
# as much memory again.
JAR_PATTERNS = ("zookeeper*", "slf4j-api*", "log4j*", "netty*", "metrics-core*", "snappy-java*")
LOG_LINES_MAX = 4  # of a failed start, quoted in its error
CONFIG = "zoo.cfg"
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def server_config(address: str, port: int, *, is_temporary: bool = False) -> str:
    """Return the text of CONFIG, in the data directory: one server, sessions of 1 s to 2 min, `srvr` its only command.

    *is_temporary*: no fsync. Its nodes outlive a killed server, but no power cut, which ends their directory anyway.
    """
    settings = {
        "tickTime": TICK_MS,
        "minSessionTimeout": SESSION_TIMEOUT_MS_MIN,
        "maxSessionTimeout": SESSION_TIMEOUT_MS_MAX,
        "dataDir": "./.",  # its working directory: a name of other letters would be read as Latin-1
        "clientPort": port,
        "clientPortAddress": address,
        "maxClientCnxns": CONNECTIONS_PER_ADDRESS_MAX,
        "maxCnxns": CONNECTIONS_PER_ADDRESS_MAX,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr",
        "preAllocSize": LOG_PREALLOCATED_KIB,
        "autopurge.snapRetainCount": 3,
        "autopurge.purgeInterval": 1,
    }
    if is_temporary:
        settings["forceSync"] = "no"
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def server_command(java: Path, jars: Sequence[Path]) -> list[str]:
    """Return the command that runs the server in the foreground, in its data directory: a small heap, only warnings
    logged."""
    return [
        str(java),
        f"-Xmx{HEAP_MIB}m",
        "-XX:+UseSerialGC",  # two collector threads less for a heap this small
        "-XX:TieredStopAtLevel=1",  # half the start-up time; peak speed is not what this server is for
        "-XX:+ExitOnOutOfMemoryError",
        "-Dlog4j2.level=WARN",
        "-Dzookeeper.nio.numWorkerThreads=0",  # the selector's thread reads and writes: a sixth less processor time
        "-cp",
        ":".join(str(jar) for jar in jars),
        MAIN_CLASS,
        f"./{CONFIG}",
    ]


def explain_log(text: str) -> str:
    """Return the errors at the end of a server's log on one line, without stack frames."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if " ERROR " in line or re.match(r"[\w.$]+(Exception|Error)\b", line)]
    return " | ".join((told or lines)[-LOG_LINES_MAX:]) or "(empty)"
