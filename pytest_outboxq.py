"""outboxq's fixtures for pytest; see `outboxq.testing`.

This module is outside the package, because pytest imports its plugins in every run, and importing the package would
slow down each run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from outboxq import Outbox
    from outboxq.testing import Harness


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("outboxq_app", "The application's Outbox as module:outbox, e.g. shop.tasks:outbox")
    parser.addini("outboxq_test_database", "The name of a database that tests may commit to; * stands for any text")


@pytest.fixture
def outboxq_app(pytestconfig: pytest.Config, outboxq_flask: Any) -> Outbox:
    """Return the application's Outbox: the one that the `outboxq_app` ini option names, or else that of the Flask
    application or the Django project. Override the fixture to return a different one.
    """
    said = pytestconfig.getini("outboxq_app")
    return named(said) if said else of_flask(outboxq_flask) or of_django() or named("")


@pytest.fixture
def outboxq_using() -> object:
    """Return the test's own open transaction. Override the fixture if there is one.

    None means Django's transaction. Without Django, the outbox then commits to its own database, which must be a test
    database.
    """
    return None


@pytest.fixture
def outboxq_flask(request: pytest.FixtureRequest) -> Any:
    """Return the Flask application: the value of the `app` fixture, as in pytest-flask; None if there is no such
    fixture.
    """
    if "flask" not in sys.modules and "app" not in request.fixturenames:  # the fixture may be what imports Flask
        return None
    try:
        app = request.getfixturevalue("app")
    except pytest.FixtureLookupError as error:
        if error.argname != "app":
            raise
        return None
    flask = sys.modules.get("flask")
    return app if flask is not None and isinstance(app, flask.Flask) and "outboxq" in app.extensions else None


@pytest.fixture
def harness(
    request: pytest.FixtureRequest, outboxq_app: Outbox, outboxq_using: object, outboxq_flask: Any
) -> Iterator[Harness]:
    """Return a Harness in the test's transaction, with assert_enqueued(), refute_enqueued(), drain(), clock, inline()."""
    from outboxq.testing import Harness
    from outboxq.testing.unittest_case import refuse_own_database

    if outboxq_using is None and outboxq_app is of_django() and request.config.pluginmanager.hasplugin("django"):
        request.getfixturevalue("db")  # pytest-django's fixture; a django_db mark has already taken effect
    if outboxq_using is None:
        refuse_own_database(outboxq_app, flask=outboxq_flask, allowed=request.config.getini("outboxq_test_database"))
    with without_request(outboxq_flask), Harness(outboxq_app, using=outboxq_using, flask=outboxq_flask) as found:
        yield found


@contextmanager
def without_request(app: Any) -> Iterator[None]:
    """Pop the request context that pytest-flask keeps pushed, and push it again after the block.

    A test client's requests would use that context's `db.session`, so a request that does not commit would leave a
    transaction open, which on SQLite locks the file. Contexts that the block has left pushed, such as that of the
    `client` fixture's last request, are put back above it, because they are popped before it.
    """
    if app is None:
        yield
        return
    from flask import globals as current
    from flask import has_request_context

    proxy: Any = current.request_ctx

    def top() -> Any:
        return proxy._get_current_object() if has_request_context() else None  # noqa: SLF001

    pushed = top()
    if pushed is None:
        yield
        return
    pushed.pop()
    below = top()
    try:
        yield
    finally:
        above = []
        while (left := top()) is not below:
            left.pop()
            above.append(left)
        for context in (pushed, *reversed(above)):
            context.push()


def of_flask(app: Any) -> Outbox | None:
    """Return a Flask application's Outbox."""
    found: Outbox | None = None if app is None else app.extensions["outboxq"]
    return found


def of_django() -> Outbox | None:
    """Return the Django project's Outbox; None if there is no project, or if it does not use outboxq."""
    registry = sys.modules.get("django.apps")
    if registry is None or not registry.apps.ready or not registry.apps.is_installed("outboxq.contrib.django"):
        return None
    from outboxq.contrib.django import outbox

    return outbox


def named(said: str) -> Outbox:
    """Return the Outbox that `module:outbox` names. Raises UsageError if it does not exist."""
    import importlib

    from outboxq import Outbox

    if not said:
        raise pytest.UsageError(
            'the `harness` fixture does not know which Outbox to use: set outboxq_app = "module:outbox" in pytest\'s '
            "configuration, or write an outboxq_app fixture that returns it"
        )
    module, _, name = said.partition(":")
    found = getattr(importlib.import_module(module), name or "outbox", None)
    if not isinstance(found, Outbox):
        raise pytest.UsageError(f"outboxq_app = {said!r}: {module} has no Outbox called {name or 'outbox'!r}")
    return found
