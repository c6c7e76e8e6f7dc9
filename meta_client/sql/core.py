"""SQLAlchemy Core's names, and a column type that means the same in every database. Without SQLAlchemy, an extra, this
raises NoDatabase when it is imported."""

from meta_client.errors import NoDatabase

try:
    from sqlalchemy import (
        ARRAY,
        TIMESTAMP,
        BigInteger,
        Column,
        Connection,
        Delete,
        Dialect,
        Engine,
        Executable,
        Identity,
        Insert,
        Integer,
        LargeBinary,
        MetaData,
        NullPool,
        Select,
        String,
        Table,
        Text,
        any_,
        bindparam,
        create_engine,
        delete,
        exc,
        false,
        func,
        insert,
        inspect,
        select,
        tuple_,
        update,
    )
    from sqlalchemy import column as known_column
    from sqlalchemy import table as known_table
    from sqlalchemy.dialects import mssql, mysql
    from sqlalchemy.schema import CreateTable
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    reason = "a table of ours in your database needs the package sqlalchemy: pip install 'metaq-broker[sql]'"
    raise NoDatabase(reason) from error

__all__ = [
    "ARRAY",
    "TIMESTAMP",
    "BigInteger",
    "Column",
    "Connection",
    "CreateTable",
    "Delete",
    "Dialect",
    "Engine",
    "Executable",
    "Identity",
    "Insert",
    "Integer",
    "LargeBinary",
    "MetaData",
    "NullPool",
    "Select",
    "String",
    "Table",
    "Text",
    "any_",
    "bindparam",
    "bytewise_text",
    "create_engine",
    "delete",
    "exc",
    "false",
    "func",
    "insert",
    "inspect",
    "known_column",
    "known_table",
    "mysql",
    "select",
    "tuple_",
    "update",
]


def bytewise_text(length: int) -> String:
    """Return a type for text that compares byte by byte, which MySQL and SQL Server do not by default: two topics would
    be one."""
    return (
        String(length)
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
        .with_variant(mssql.VARCHAR(length, collation="Latin1_General_100_BIN2_UTF8"), "mssql")
    )
