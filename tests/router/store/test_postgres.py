"""What only PostgreSQL does: connections that its server ends."""

import asyncio

import psycopg
import pytest
from dragoman.router._store.postgres import PostgresDatabase
from dragoman.router._store.store import Store

from tests.router.store.databases import new_postgres


def cut_connections(url: str) -> None:
    """End all connections to a database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_a_connection_that_the_server_ended_is_replaced_unused(
    request: pytest.FixtureRequest,
) -> None:
    url = new_postgres(request)
    store = Store(PostgresDatabase(url))
    await store.open()
    try:
        await asyncio.gather(*(store.run("r") for _ in range(8)))
        await asyncio.to_thread(cut_connections, url)
        assert await asyncio.gather(*(store.run("r") for _ in range(8))) == [None] * 8
    finally:
        await store.close()
