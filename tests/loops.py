"""Cases that one test runs in a loop because they can share a database or a compiled statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    """Add the name of the case to an exception."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case: {name}")
        raise
