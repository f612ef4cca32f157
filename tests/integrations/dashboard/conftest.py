"""The browser, and the site that it looks at."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.browser import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """This process's browser."""
    found = Browser()
    yield found
    found.close()


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
