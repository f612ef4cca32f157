"""The command that creates the tables, as a framework's users type it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import SchemaOutOfDate


@contextmanager
def upgraded_by(command: str) -> Iterator[None]:
    """Make a SchemaOutOfDate name this command if an upgrade of the tables helps."""
    try:
        yield
    except SchemaOutOfDate as error:
        raise error.mended_by(command) from None
