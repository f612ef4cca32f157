"""The browser, and the site that it opens."""

from __future__ import annotations

import inspect
import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outboxq import Outbox
from outboxq.database.engine import make_engine
from outboxq.web import application
from tests.browser import Browser
from tests.conftest import Database
from tests.integrations.dashboard.filling import Filling, fill
from tests.integrations.dashboard.serving import Site


@pytest.fixture(autouse=True)
def _ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep waitress from logging that requests are queued on a busy machine, because tests compare the log."""
    monkeypatch.setattr(logging.getLogger("waitress.queue"), "disabled", True)


FRESH = 40.0
"""The number of seconds for which a filled file is copied. Its delayed tasks become due after more than a minute."""


class Filled:
    """A file with the tables of a small shop, which tests copy. Filling it takes a hundred times as long as a copy."""

    def __init__(self, template: Path, path: Path) -> None:
        self._template, self._path = template, path
        self._filling: Filling | None = None
        self._since = 0.0

    def copy_to(self, database: Database) -> Filling:
        if self._filling is None or time.monotonic() > self._since + FRESH:
            self._fill()
        assert self._filling is not None
        shutil.copy(self._path, str(database.engine.url.database))
        found = replace(
            self._filling,
            outbox=Outbox(database.engine),
            tasks=dict(self._filling.tasks),
            workers=dict(self._filling.workers),
            batches=dict(self._filling.batches),
            running=list(self._filling.running),
        )
        found.beat()
        return found

    def _fill(self) -> None:
        shutil.copy(self._template, self._path)
        engine = make_engine(f"sqlite:///{self._path}")
        self._since = time.monotonic()
        self._filling = fill(engine)
        engine.dispose()  # closing the last connection moves the WAL into the file


@pytest.fixture(scope="session")
def filled(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return Filled(migrated_sqlite, tmp_path_factory.mktemp("filled") / "filled.db")


@pytest.fixture
def filling(sqlite: Database, filled: Filled) -> Filling:
    """The tables of a small shop."""
    return filled.copy_to(sqlite)


@pytest.fixture
def site(filling: Filling) -> Iterator[Site]:
    """The dashboard of these tables. It allows actions and shows arguments."""
    with Site(application(filling.outbox, allow_actions=True, show_arguments=True)) as found:
        yield found


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[Any]:
    """Open a tab at a site: ``open_tab(site.url, size=PHONE)``. A problem in any tab fails the test."""
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
