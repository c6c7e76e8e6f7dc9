"""Generations of decision tables, as the doctor reads them all."""

import pytest

from zk.decisions.generation import TableGeneration, read_generations, write_generation
from zk.errors import MalformedNode
from zk.session.session import ZooKeeperSession


def test_every_table_that_has_a_node(session: ZooKeeperSession) -> None:
    assert read_generations(session) == {}
    for table_id, generation in (("5e2f", 7), ("77aa", 0)):
        write_generation(session, table_id, TableGeneration(generation=generation), None)
    assert read_generations(session) == {"5e2f": 7, "77aa": 0}
    session.write("/meta/metaq/tables/ff00", b'{"generation":-1}')
    with pytest.raises(MalformedNode, match="/meta/metaq/tables/ff00"):
        read_generations(session)
