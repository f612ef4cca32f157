"""The browser, and the site that it looks at."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from outboxq.web import application
from tests.browser import Browser
from tests.conftest import Database
from tests.integrations.dashboard.filling import Filling, fill
from tests.integrations.dashboard.serving import Site


@pytest.fixture(autouse=True)
def _ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep waitress from logging that a request waits, as it does where the machine is busy: tests compare what is logged."""
    monkeypatch.setattr(logging.getLogger("waitress.queue"), "disabled", True)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """This process's browser."""
    found = Browser()
    yield found
    found.close()


@pytest.fixture
def filling(sqlite: Database) -> Filling:
    """The tables of a small shop."""
    return fill(sqlite.engine)


@pytest.fixture
def site(filling: Filling) -> Iterator[Site]:
    """Their dashboard, which allows actions and shows arguments."""
    with Site(application(filling.outbox, allow_actions=True, show_arguments=True)) as found:
        yield found


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[Any]:
    """Open a tab at a site: ``open_tab(site.url, size=PHONE)``. Whatever has gone wrong in one of them fails the test."""
    tabs: list[Any] = []

    def opened(url: str, **options: Any) -> Any:
        tabs.append(browser.tab(url, **options))
        return tabs[-1]

    yield opened
    for tab in tabs:
        browser.run(tab.close)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with a tab in the browser's thread."""
    if "open_tab" not in pyfuncitem.fixturenames:
        return None
    browser = pyfuncitem.funcargs["browser"]
    names = inspect.signature(pyfuncitem.obj).parameters
    browser.run(partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}))
    return True
