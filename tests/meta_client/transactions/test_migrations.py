"""`metaq txn init --sql` as a migration: of Django's and of Alembic's."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from click.testing import CliRunner
from django.db import connections, migrations
from django.db.migrations.state import ProjectState

from meta_client.cli.decision_table import init
from meta_client.transactions.databases import table_at
from meta_client.transactions.table import KEEP_S
from tests.fixtures.mariadb import MariaDatabase
from tests.fixtures.postgres import Database
from tests.meta_client.transactions import django_shop
from tests.meta_client.transactions.crashing import engine_of


@pytest.fixture(params=["database", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    """URL of an empty PostgreSQL or MariaDB."""
    found: Database | MariaDatabase = request.getfixturevalue(request.param)
    return found.dsn if isinstance(found, Database) else found.url


@pytest.fixture
def sql(url: str) -> Iterator[str]:
    """Yield the migration; afterwards the table exists and serves this database."""
    shown = CliRunner().invoke(init, ["--database", url, "--sql"], catch_exceptions=False)
    yield shown.output
    with closing(table_at(url)) as table:
        assert table.identity.keep_s == KEEP_S
        assert table.rows(0, 10) == []


def test_django(url: str, sql: str) -> None:
    alias = django_shop.use(url)
    migration = migrations.Migration("0001_decisions", "shop")
    migration.operations = [migrations.RunSQL(sql)]
    with connections[alias].schema_editor() as editor:
        migration.apply(ProjectState(), editor)
    connections[alias].close()
    del connections[alias], connections.settings[alias]  # else each request would begin there, too


def test_alembic(url: str, sql: str) -> None:
    engine = engine_of(url)
    statements = sql.split(";\n")[:-1] if url.startswith(("mariadb:", "mysql:")) else [sql]  # MySQL takes one at a time
    with engine.begin() as connection:
        for statement in statements:
            Operations(MigrationContext.configure(connection)).execute(statement)
    engine.dispose()
