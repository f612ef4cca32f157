"""Cases that one test runs in a loop, where a database, or a compiled statement, serves all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    """Have a failure say which case it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case: {name}")
        raise
