"""What can go wrong with ZooKeeper, by what the caller does next. Every message is one line with a remedy."""


class ZooKeeperError(Exception):
    """Base of every error this package raises."""


class ZooKeeperUnavailable(ZooKeeperError):
    """No answer in time, or the session is gone; the last request may have acted or not. Wait, do it again."""


class MalformedNode(ZooKeeperError):
    """A node holds data that its path does not allow. Do not act on it; an operator must look."""

    def __init__(self, path: str, data: bytes, expected: str) -> None:
        shown = repr(data[:80]) + ("..." if len(data) > 80 else "")
        super().__init__(f"ZooKeeper node {path} holds {shown}, expected {expected}: correct or delete the node")
        self.path = path
        self.data = data


class JavaNotFound(ZooKeeperError):
    """No usable Java on this machine. Install one and start again."""


class EmbeddedZooKeeperFailed(ZooKeeperError):
    """The embedded server did not start. The message quotes its log."""


class EmbeddedZooKeeperMissing(EmbeddedZooKeeperFailed):
    """No server to start on this machine. Install one, or use a cluster's own."""
