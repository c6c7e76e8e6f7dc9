"""Shares of the loop's turns: bounded in time, and fair by peer."""

from collections import deque
from collections.abc import Callable

from meta_broker.net.turns import TURN_S, PeerKey, Turns


class World:
    """A loop whose turns the test begins, and a clock that visits move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: deque[Callable[[], None]] = deque()
        self.turns = Turns(self.due.append, lambda: self.now)
        self.visited: list[str] = []

    def turn(self) -> list[str]:
        """Begin the next turn; return whom it visited."""
        self.visited = []
        for _ in range(len(self.due)):
            self.due.popleft()()
        return self.visited


class Client:
    """A connection with *left* visits' worth of requests, each of which takes *takes_s*."""

    def __init__(self, world: World, name: str, peer: str, left: int, takes_s: float = TURN_S * 0.26) -> None:
        self.peer_key: PeerKey = (peer, "10.0.0.1")
        self.name, self.left = name, left
        self._world, self._takes_s = world, takes_s
        world.turns.wait(self)

    def take_turn(self) -> None:
        self._world.visited.append(self.name)
        self._world.now += self._takes_s
        self.left -= 1
        if self.left:
            self._world.turns.wait(self)


def test_a_turn_serves_what_waits_for_a_bounded_time() -> None:
    world = World()
    flood = Client(world, "flood", "a", left=10)
    visits = []
    while flood.left:
        visits.append(len(world.turn()))
    assert visits == [4, 4, 2]
    assert not world.due


def test_a_peer_with_many_connections_delays_another_by_one_visit() -> None:
    world = World()
    for number in range(100):
        Client(world, f"flood-{number}", "a", left=1_000)
    world.turn()
    Client(world, "honest", "b", left=1)
    assert "honest" in world.turn()[:2]


def test_connections_of_a_peer_take_turns_in_their_order() -> None:
    world = World()
    for name in ("x", "y", "z"):
        Client(world, name, "a", left=2)
    assert world.turn() + world.turn() == ["x", "y", "z", "x", "y", "z"]


def test_what_arrives_has_a_share_of_each_turn_though_others_wait() -> None:
    world = World()
    Client(world, "flood", "a", left=1_000)
    for _ in range(3):
        assert len(world.turn()) == 4
        assert not world.turns.is_over()
        world.now += TURN_S
        assert world.turns.is_over()
