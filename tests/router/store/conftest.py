"""Fixtures of the run log's tests."""

from tests.router.store.databases import database, store

__all__ = ["database", "store"]
