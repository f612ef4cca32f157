"""A mixin for unittest that enters a Harness in each test, and a check that keeps a harness from committing to a
developer's database.
"""

from __future__ import annotations

import re
import tempfile
import unittest
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..outbox import Outbox
from .harness import Harness

if TYPE_CHECKING:
    _Case = unittest.TestCase
else:
    _Case = object

__unittest = True  # tracebacks end at the test's line


class OutboxTests(_Case):
    """A mixin that a test class lists before its TestCase. It provides a Harness as `self.harness`.

    A class that lists it after a TestCase is refused with ConfigurationError, because the TestCase's `setUp` would not
    call the mixin's.

    In a Django TestCase, every transaction is part of the test's transaction. In a TransactionTestCase, the harness
    commits as the application would.
    """

    outboxq_app: Outbox | None = None
    """The application's Outbox. None means the outbox of Django's `default` database."""
    harness: Harness
    outboxq_flask: Any = None
    """The Flask application, if there is one."""
    outboxq_test_database: str = ""
    """The name of a database that the tests may commit to. It is needed only if the database's name does not contain
    the word `test`.
    """

    def __init_subclass__(cls, *args: Any, **kwargs: Any) -> None:
        super().__init_subclass__(*args, **kwargs)
        order = cls.__mro__
        if unittest.TestCase in order and order.index(unittest.TestCase) < order.index(OutboxTests):
            ours, case = (
                next(base.__name__ for base in cls.__bases__ if issubclass(base, kind))
                for kind in (OutboxTests, unittest.TestCase)
            )
            raise ConfigurationError(
                f"{cls.__name__} lists {ours} after {case}, so its setUp() would not be called and self.harness would be "
                f"missing; write class {cls.__name__}({ours}, {case})"
            )

    def outboxq_using(self) -> object:
        """Return the test's open transaction, in any form that `Task.using()` accepts.

        None means Django's transaction. Without Django, None means that the outbox commits to its own database, which
        must be a test database.
        """
        return None

    def setUp(self) -> None:
        super().setUp()
        outbox, using, flask = self.outboxq_app or _of_django(), self.outboxq_using(), self.outboxq_flask
        if using is None:
            refuse_own_database(outbox, flask=flask, allowed=self.outboxq_test_database)
        self.harness = Harness(outbox, using=using, flask=flask)
        self.enterContext(self.harness)


def _of_django() -> Outbox:
    try:
        from django.conf import settings
    except ImportError:
        settings = None
    if settings is None or not settings.configured:
        raise ConfigurationError(
            "OutboxTests does not know which outbox to test; set outboxq_app = outbox in the test class"
        )
    from ..contrib.django import outbox

    return outbox


_TEST = re.compile(r"(?<![a-z])tests?(?![a-z])", re.IGNORECASE)


def refuse_own_database(outbox: Outbox, *, flask: Any = None, allowed: str = "") -> None:
    """Raise ConfigurationError if this outbox's database does not look like a test database. Django's databases are not
    checked, because Django's test runner creates them.

    A database is a test database in three cases: it is in memory or in the directory for temporary files; its name
    contains the word `test`; or its name matches `allowed`, which is the name of a database or of a SQLite file. In
    `allowed`, ``*`` matches any text.
    """
    if hasattr(outbox.integration, "alias"):
        return
    with nullcontext() if flask is None else flask.app_context():
        engine = outbox.store.bound_engine
        dialect = outbox.store.dialect
    name = dialect.database_name(engine.url) or engine.url.database or ""
    if not (dialect.is_in_memory(engine.url) or _is_for_tests(name, allowed)):
        raise ConfigurationError(
            f"without the test's transaction, a harness commits to {dialect.place(engine.url, lambda: None)}, which "
            "does not look like a test database; return the test's open transaction from outboxq_using, or let the tests use "
            f"a database with the word test in its name; if they may change this database, write outboxq_test_database = {name}"
        )


def _is_for_tests(name: str, allowed: str) -> bool:
    path = PurePath(name)
    if _TEST.search(path.stem):
        return True
    if allowed and any(fnmatchcase(one, allowed) for one in (name, path.name)):
        return True
    return path.is_absolute() and path.is_relative_to(Path(tempfile.gettempdir()).resolve())
