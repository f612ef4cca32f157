"""The pages for frameworks, executed: docs/flask.md and docs/fastapi.md. The first block is a module, and commands are run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from anyio import CapacityLimiter
from flask import Flask
from sqlalchemy import event, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tests import forked
from tests.docs.test_guides import ROOT, blocks


@pytest.fixture
def url(database):
    return make_url(database.url).render_as_string(hide_password=False)


@pytest.fixture
def module(database, tmp_path, monkeypatch):
    """Write the page's module where it can be imported, with this database instead of the one that the page names."""
    names = []

    def write(source: str, **replacements: str) -> None:
        for old, new in replacements.values():
            assert source.count(old) == 1
            source = source.replace(old, new)
        (name,) = [line.removeprefix("# ").removesuffix(".py") for line in source.splitlines()[:1]]
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        names.append(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


def execute(page: Path, rest, names: dict[str, object], command=None) -> None:
    for language, before, source in rest:
        if language == "python":
            exec(compile("\n" * before + source, str(page), "exec", dont_inherit=True), names)
        else:
            command(source)


@pytest.mark.current  # the page's model_class is from Flask-SQLAlchemy 3.1, which requires SQLAlchemy 2.0.16
def test_the_code_of_the_flask_page_works(url, module):
    page = ROOT / "docs" / "flask.md"
    (_, _, source), *rest = blocks(page)
    module(source, url=('"sqlite:///shop.db"', repr(url)))
    import app  # the page's module

    names: dict[str, object] = {}

    def command(source: str) -> None:
        """Run each command with its own application, as in a separate process."""
        for line in source.splitlines():
            told, _, prints = line.partition("  # ")
            program, *arguments = told.split()
            made = app.create_app()
            result = made.test_cli_runner().invoke(args=arguments)
            assert (program, result.exit_code) == ("flask", 0), result.output
            assert prints in result.stdout, line
            close(made)

    def close(made: Flask) -> None:
        with made.app_context():
            app.db.engine.dispose()

    execute(page, rest, names, command)
    with names["app"].app_context():
        assert app.outbox.store.verify() == []
        app.db.drop_all()
    close(names["app"])


OF_FLASK_MIGRATE = ("-W", "ignore:'get_engine' is deprecated")
"""Its env.py first gets the engine in this way."""


@pytest.mark.current  # as the test above
def test_flask_migrate_drops_no_table_of_outboxq(database, url, tmp_path):
    (_, _, source), *rest = blocks(ROOT / "docs" / "flask.md")
    [filtered] = [source for _, _, source in rest if "not_ours" in source]
    (tmp_path / "app.py").write_text(source.replace('"sqlite:///shop.db"', repr(url)))
    (tmp_path / "shop.py").write_text(f"from app import create_app, db\napp = create_app()\n{filtered}")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    for words in (["outboxq", "upgrade"], ["db", "init"], ["db", "migrate", "-m", "orders"]):
        command = [*forked.PYTHON, *OF_FLASK_MIGRATE, "-m", "flask", "--app", "shop", *words]
        done = forked.run(
            command, warm=forked.FRAMEWORKS, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
    [written] = (tmp_path / "migrations" / "versions").glob("*.py")
    assert "op.create_table('order'" in written.read_text()
    before_downgrade = written.read_text().partition("def downgrade")[0]
    assert "op.drop_table" not in before_downgrade
    if database.name == "postgresql":
        database.run("DROP TABLE IF EXISTS alembic_version")


class Client:
    """A client of an ASGI application. Errors of the application become responses, as on a server."""

    def __init__(self, app):
        self.transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        [response] = self.at_once("GET", path, headers or {})
        return response

    def post(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        [response] = self.at_once("POST", path, headers or {})
        return response

    def at_once(self, method: str, path: str, *headers: dict[str, str]) -> list[httpx.Response]:
        """Send a request with each of the headers, all at the same time."""

        async def send() -> list[httpx.Response]:
            async with httpx.AsyncClient(transport=self.transport, base_url="http://shop", timeout=30) as client:
                return await asyncio.gather(*(client.request(method, path, headers=one) for one in headers))

        return asyncio.run(send())


def test_the_code_of_the_fastapi_page_works(database, url, module, monkeypatch):
    page = ROOT / "docs" / "fastapi.md"
    (_, _, source), *rest = blocks(page)
    module(source, engine=('"sqlite:///shop.db"', repr(url)))
    import app  # the page's module

    # The page's second module. Its blocks and the blocks that use it share their names.
    payments = ModuleType("payments")
    monkeypatch.setitem(sys.modules, "payments", payments)
    names = vars(payments)
    names |= {"client": Client(app.app), "event": event, "Session": Session, "NullPool": NullPool}
    driver = "asyncpg" if find_spec("asyncpg") else "psycopg"  # the page's statement works with both
    # Each request of this client has its own event loop, to which a pooled connection would belong.
    engines = {
        '"postgresql+psycopg://user@host/database"': f"{url!r}, poolclass=NullPool",
        '"postgresql+asyncpg://user@host/database"': f"{url.replace('+psycopg', f'+{driver}')!r}, poolclass=NullPool",
    }
    for language, before, source in rest:
        if database.name == "postgresql" or not source.startswith("# PostgreSQL"):
            with_engines = reduce(lambda text, engine: text.replace(*engine), engines.items(), source)
            execute(page, [(language, before, with_engines)], names)
    if database.name == "postgresql":
        pay_twice_at_once(names, "/payments")
        pay_twice_at_once(names, "/asyncpg-payments")
        pay_again_after_a_prune(names)
        wait_for_receipts(names)
    assert app.outbox.store.verify() == []
    app.Base.metadata.drop_all(app.engine)
    app.engine.dispose()


def pay_twice_at_once(names: dict[str, Any], path: str) -> None:
    """Send overlapping requests with the same key."""
    store, key = names["outbox"].store, f"at once {path}"
    before = {task.id for task in store.tasks(task="shop.charge")}
    answers = names["client"].at_once("POST", f"{path}?cents=1", *[{"Idempotency-Key": key}] * 5)
    assert [(one.status_code, one.json()) for one in answers] == [(200, answers[0].json())] * 5
    with Session(names["engine"]) as session:
        [payment] = session.scalars(select(names["Payment"]).filter_by(request_key=key))
    [task] = [task for task in store.tasks(task="shop.charge") if task.id not in before]
    assert json.loads(task.args) == {"payment_id": payment.id}
    assert answers[0].json() == {"payment": payment.id}


def pay_again_after_a_prune(names: dict[str, Any]) -> None:
    """The task and its idempotency key are gone, but the payment is not."""
    outbox, client = names["outbox"], names["client"]
    outbox.worker().run(burst=True)
    outbox.store.prune(0)
    assert outbox.store.tasks(task="shop.charge") == []
    for path in ("/payments", "/asyncpg-payments"):
        assert client.post(f"{path}?cents=995", headers=names["key"]).json() == names["first"]
    assert outbox.store.tasks(task="shop.charge") == []


def wait_for_receipts(names: dict[str, Any]) -> None:
    """With a worker, the answer contains the receipt. Without a worker or without a free thread, it contains the task's id."""
    client, worker = names["client"], names["outbox"].worker()
    worker.start()
    answer = client.post("/receipts?cents=7")
    worker.stop()
    assert (answer.status_code, answer.json()) == (200, {"receipt": "7 cents"})
    for answer in (client.post("/receipts?cents=8"), asyncio.run(wait_without_a_thread(client, names["waiting"]))):
        assert (answer.status_code, list(answer.json())) == (202, ["task"])


async def wait_without_a_thread(client: Client, limiter: CapacityLimiter) -> httpx.Response:
    """Send a request while other requests occupy all threads that may wait."""
    for _ in range(int(limiter.total_tokens)):
        await limiter.acquire_on_behalf_of(object())
    async with httpx.AsyncClient(transport=client.transport, base_url="http://shop") as sender:
        return await asyncio.wait_for(sender.post("/receipts?cents=9"), 60)
