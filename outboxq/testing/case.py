"""Mixin for unittest, and for the TestCases of Django."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..outbox import Outbox
from .harness import Harness

if TYPE_CHECKING:
    _Case = unittest.TestCase
else:
    _Case = object


class OutboxTests(_Case):
    """A mixin for a TestCase, to be named before it: `self.outbox` is a Harness.

    In Django's TestCase everything is part of the test's transaction; in a TransactionTestCase it commits as the application
    would.
    """

    outboxq_app: Outbox | None = None
    """The application's Outbox. None: the one of Django's database `default`."""
    outbox: Harness
    outboxq_flask: Any = None
    """The Flask application, if there is one."""

    def outboxq_using(self) -> object:
        """Return the test's own open transaction, as `Task.using()` takes it.

        None: Django's; without Django, the outbox commits to its own database.
        """
        return None

    def setUp(self) -> None:
        super().setUp()
        self.outbox = Harness(self.outboxq_app or _of_django(), using=self.outboxq_using(), flask=self.outboxq_flask)
        self.enterContext(self.outbox)


def _of_django() -> Outbox:
    try:
        from django.conf import settings
    except ImportError:
        settings = None
    if settings is None or not settings.configured:
        raise ConfigurationError(
            "OutboxTests does not know which outbox to test; set outboxq_app = outbox in the class of the test"
        )
    from ..contrib.django import outbox

    return outbox
