"""Fixtures of the run log's tests."""

from tests.router.store.databases import database, postgres_server, store

__all__ = ["database", "postgres_server", "store"]
