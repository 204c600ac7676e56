"""Fixtures of the run log's tests."""

from tests.router.store.databases import database, store
from tests.router.store.writer_harness import harness

__all__ = ["database", "harness", "store"]
