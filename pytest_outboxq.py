"""The fixtures of outboxq for pytest; see `outboxq.testing`.

This module is outside the package, because pytest imports its plugins in every run, and importing the package would
slow each run down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outboxq import Outbox
    from outboxq.testing import Harness


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("outboxq_app", "The application's Outbox, written module:outbox, e.g. shop.tasks:outbox")


@pytest.fixture
def outboxq_app(pytestconfig: pytest.Config) -> Outbox:
    """Return the application's Outbox, which the ini option `outboxq_app` names. Override the fixture to return a
    different one.
    """
    return named(pytestconfig.getini("outboxq_app"))


@pytest.fixture
def outboxq_using() -> object:
    """Return the test's own open transaction. Override the fixture if there is one.

    None means Django's transaction. Without Django, the outbox then commits to its own database.
    """
    return None


@pytest.fixture
def outboxq_flask() -> object:
    """Return the Flask application. Override the fixture if there is one."""
    return None


@pytest.fixture
def outbox(outboxq_app: Outbox, outboxq_using: object, outboxq_flask: object) -> Iterator[Harness]:
    """Return a Harness in the test's transaction: assert_enqueued(), refute_enqueued(), drain(), clock, inline()."""
    from outboxq.testing import Harness

    with Harness(outboxq_app, using=outboxq_using, flask=outboxq_flask) as harness:
        yield harness


def named(said: str) -> Outbox:
    """Return the Outbox that `module:outbox` names. Raises UsageError if it does not exist."""
    import importlib

    from outboxq import Outbox

    if not said:
        raise pytest.UsageError(
            'the fixture `outbox` does not know which Outbox to use: set outboxq_app = "module:outbox" in pytest\'s '
            "configuration, or write a fixture outboxq_app that returns it"
        )
    module, _, name = said.partition(":")
    found = getattr(importlib.import_module(module), name or "outbox", None)
    if not isinstance(found, Outbox):
        raise pytest.UsageError(f"outboxq_app = {said!r}: {module} has no Outbox called {name or 'outbox'!r}")
    return found
