"""A mixin for unittest that enters a Harness in each test."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..outbox import Outbox
from .harness import Harness
from .own_database import refuse_own_database

if TYPE_CHECKING:
    _Case = unittest.TestCase
else:
    _Case = object

__unittest = True  # tracebacks end at the line of the test


class OutboxTests(_Case):
    """A mixin to list before a TestCase. It provides a Harness as `self.harness`.

    A class that lists it after a TestCase is refused with ConfigurationError, because the TestCase's `setUp` would not
    call the mixin's.

    In a Django TestCase, every transaction is part of the test's transaction. In a TransactionTestCase, the harness
    commits as the application would.
    """

    outboxq_app: Outbox | None = None
    """The application's Outbox. None means the outbox of Django's database `default`."""
    harness: Harness
    outboxq_flask: Any = None
    """The Flask application, if there is one."""
    outboxq_test_database: str = ""
    """The name of a database that the tests may commit to, if that name does not contain the word `test`."""

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

        None means Django's transaction. Without Django, the outbox then commits to its own database, which must be a
        test database.
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
