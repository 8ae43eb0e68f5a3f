"""The records of spaces, runs, events and tokens, in one SQLite file."""

from carrel.store.sqlite import SqliteStore, open_store

__all__ = ["SqliteStore", "open_store"]
