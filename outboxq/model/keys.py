"""Write a concurrency key in the column of partition keys, and read it back: a task has one key, of one of two kinds."""

from __future__ import annotations

CONCURRENCY_KEY_PREFIX = "concurrency:"
"""The begin of a stored key that is a concurrency key. All other keys are partition keys."""


def stored_key(partition_key: str | None, concurrency_key: str | None) -> str | None:
    """Return the key as the tables have it. At most one of the two is given."""
    return partition_key if concurrency_key is None else CONCURRENCY_KEY_PREFIX + concurrency_key


def concurrency_key_of(stored: str | None) -> str | None:
    """Return the concurrency key that a stored key holds; None for a partition key, and without a key."""
    if stored is None or not stored.startswith(CONCURRENCY_KEY_PREFIX):
        return None
    return stored[len(CONCURRENCY_KEY_PREFIX) :]


class HasKey:
    """A record with the key of a task, as the tables have it."""

    __slots__ = ()

    partition_key: str | None

    @property
    def concurrency_key(self) -> str | None:
        """The key of which so many tasks run at once as the queue's limit per key says; None: it has none."""
        return concurrency_key_of(self.partition_key)
