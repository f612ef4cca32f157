"""The Store for an outbox inside a framework."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from ..database.target import Target
from ..errors import SchemaOutOfDate
from ..store import Store


class FrameworkStore(Store):
    """A Store whose SchemaOutOfDate errors name the framework's own upgrade command if upgrading the tables would help."""

    @property
    @abstractmethod
    def upgrade_command(self) -> str:
        """The command that creates and upgrades the tables, as a user would type it."""

    def ensure_file(self) -> None:
        with self._naming_the_command():
            super().ensure_file()

    def check_schema(self, target: Target) -> None:
        with self._naming_the_command():
            super().check_schema(target)

    @contextmanager
    def _naming_the_command(self) -> Iterator[None]:
        try:
            yield
        except SchemaOutOfDate as error:
            raise error.mended_by(self.upgrade_command) from None
