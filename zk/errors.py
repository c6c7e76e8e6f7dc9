"""Errors of this package, one class for each thing a caller can do about them. Messages are one line with a remedy."""


class ZooKeeperError(Exception):
    """Base of every error this package raises."""

    def __reduce__(self) -> tuple[object, ...]:
        """Let another process have it: without its constructor, which takes other arguments than its text."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class ZooKeeperUnavailable(ZooKeeperError):
    """ZooKeeper did not answer in time, or the session expired. The last request may have taken effect: retry later."""


class MalformedNode(ZooKeeperError):
    """A node holds data that its path does not allow. Do not act on it; an operator must correct or delete it."""

    def __init__(self, path: str, data: bytes, expected: str) -> None:
        shown = repr(data[:80]) + ("..." if len(data) > 80 else "")
        self.problem = f"holds {shown}, expected {expected}"
        super().__init__(f"ZooKeeper node {path} {self.problem}: correct or delete the node")
        self.path = path
        self.data = data


class RefusedNode(ZooKeeperError):
    """ZooKeeper's access rules keep this session from one node: give it the right to read, or delete the node."""

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(f"ZooKeeper refused {path} ({type(error).__name__}): check its access rules")
        self.path = path


class JavaNotFound(ZooKeeperError):
    """This machine has no usable Java. Install one and start again."""


class EmbeddedZooKeeperFailed(ZooKeeperError):
    """The embedded server did not start. The message quotes its log."""


class EmbeddedZooKeeperMissing(EmbeddedZooKeeperFailed):
    """This machine has no ZooKeeper server to start. Install one, or use an existing ensemble."""
