"""docs/dashboard.md: its commands run, and the real frameworks serve its applications."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
from click.testing import CliRunner
from werkzeug.test import Client

from outboxq import Outbox
from outboxq.cli import main
from outboxq.cli.serving import web as command
from tests import forked
from tests.docs.test_guides import ROOT, blocks
from tests.integrations.dashboard.visitor import Visitor

PAGE = ROOT / "docs" / "dashboard.md"
TEXT = PAGE.read_text()
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Write the page's files to an empty directory."""
    names = []
    for language, _, source in blocks(PAGE):
        if language == "python":
            name = source.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(source)
            names.append(name.removesuffix(".py"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    outbox = Outbox("sqlite:///shop.db")
    outbox.upgrade()
    outbox.store.queues.pause("mail", create=True)
    outbox.store.bound_engine.dispose()
    yield tmp_path
    if (imported := sys.modules.pop("shop", None)) is not None:
        imported.outbox.store.bound_engine.dispose()
    for name in names:
        sys.modules.pop(name, None)


class NoServer:
    """A replacement for waitress, whose `run` returns immediately."""

    def run(self):
        pass

    close = run


def test_the_commands_start_the_dashboard(shop, monkeypatch):
    served = []
    monkeypatch.setattr(command, "_listening", lambda host, port: socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setattr(command, "_server", lambda *args: served.append(args) or NoServer())
    lines = [line for language, _, source in blocks(PAGE) if language == "sh" for line in source.splitlines()]
    for line in lines:
        program, *arguments = shlex.split(line)
        if program == "outboxq":
            result = CliRunner().invoke(main, arguments, catch_exceptions=False)
            assert result.exit_code == 0, result.output
            assert result.output.startswith("The dashboard is at http://")
        elif program == "python":
            words, _, file = line.rpartition(" > ")
            with (shop / file).open("wb") as output:
                forked.run([sys.executable, *shlex.split(words)[1:]], stdout=output, check=True)
        else:
            assert program == "gunicorn"
    assert len(served) == len([line for line in lines if line.startswith("outboxq")])


def test_the_page_lists_each_option():
    shown = {name for one in command.web.params for name in one.opts if name.startswith("--")}
    assert {name for name in shown if name not in TEXT} == {"--app", "--schema"}, (
        "the page omits only the options of all commands"
    )


def resume(client, root):
    """Submit the form that resumes the queue, and return the answer."""
    page = client.get(f"{root}/queue?name=mail")
    assert page.status_code == 200, page.text
    found = form(page.text, "resume")
    return None if found is None else client.post(found[0], data=found[1])


def form(text, action):
    """Return the address and the hidden fields of the form with this action, or None if the page has no such form."""
    for address, inside in re.findall(r'<form[^>]* action="([^"]*)"[^>]*>(.*?)</form>', text, re.DOTALL):
        if action in address:
            return address, dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', inside))
    return None


def test_the_dashboard_works_in_flask(shop):
    import flask_shop  # the page's module

    client = Client(flask_shop.app)
    refused = client.get("/outboxq/")
    assert (refused.status_code, refused.location) == (302, "/login")
    client.post("/login/ben")
    page = client.get("/outboxq/")
    assert page.status_code == 200
    assert 'href="/outboxq/queues"' in page.text
    style = re.search(r'href="(/outboxq/static/[^"]+)"', page.text)[1]
    assert client.get(style).status_code == 200
    assert client.get("/outboxq").status_code == 200
    assert resume(client, "/outboxq") is None, "ben may only view"
    client.post("/login/ann")
    assert resume(client, "/outboxq").location.startswith("/outboxq/")
    assert not any(one.paused_at for one in sys.modules["shop"].outbox.store.queues.settings())


@pytest.mark.slow
def test_the_dashboard_works_in_django(shop):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*forked.PYTHON, "-m", "tests.docs.dashboard_project"]
    done = forked.run(command, warm=forked.FRAMEWORKS, cwd=shop, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


@pytest.mark.current  # requires a2wsgi and the newest Starlette
def test_the_dashboard_works_in_fastapi(shop):
    import fastapi_shop  # the page's module

    async def visit():
        transport = httpx.ASGITransport(fastapi_shop.app, client=("10.1.2.3", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.get("/outboxq/")).status_code == 403
            await client.post("/login/ann")
            page = await client.get("/outboxq/queue?name=mail")
            assert page.status_code == 200
            assert 'href="/outboxq/queues"' in page.text
            action, fields = form(page.text, "/outboxq/")
            assert (await client.post(action, data={**fields, "csrf": "wrong"})).status_code == 403
            assert (await client.post(action, data=fields)).status_code == 303
            assert (await client.get("/outboxq/api/queues.json")).json() == []

    asyncio.run(visit())
    assert not any(one.paused_at for one in sys.modules["shop"].outbox.store.queues.settings())


@contextmanager
def gunicorn(line: str, **variables: str):
    """Run the page's command on a free port, and yield the port."""
    program, *arguments = shlex.split(line.replace("127.0.0.1:8080", "127.0.0.1:0"))
    process = forked.Popen(
        [sys.executable, "-m", program, *arguments],
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        seen: list[str] = []
        while not (listening := re.search(r"Listening at: http://127\.0\.0\.1:(\d+) ", "".join(seen))):
            seen.append(process.stderr.readline())
            assert seen[-1], "".join(seen)
        yield int(listening[1])
    finally:
        process.terminate()
        process.communicate(timeout=60)


def as_nginx_sends(port: int) -> Visitor:
    """Return a browser behind nginx, which sends the headers in the page's configuration."""
    values = {"$host": "tasks.example.org", "$remote_addr": "192.0.2.7", "$scheme": "https"}
    headers = dict(re.findall(r"proxy_set_header (\S+) (\S+);", TEXT))
    return Visitor(port, headers={name: values[value] for name, value in headers.items()})


@pytest.mark.slow
@pytest.mark.parametrize("root", [pytest.param("", marks=pytest.mark.full), "/outboxq"])
def test_the_dashboard_works_behind_nginx(shop, root):
    [line] = [one for language, _, one in blocks(PAGE) if language == "sh" and one.startswith("gunicorn")]
    token = "correct horse battery staple"
    variables = {"SCRIPT_NAME": root} if root else {}
    with gunicorn(line, OUTBOXQ_WEB_TOKEN=token, **variables) as port:
        assert Visitor(port).get(f"{root}/").status == 303, "no one is let in without a login"
        visitor = as_nginx_sends(port)
        assert visitor.get(f"{root}/healthz").status == 200
        page = visitor.get(f"{root}/login?next=/queues")
        answer = visitor.post(f"{root}/login", {"csrf": page.csrf, "token": token, "next": "/queues"})
        assert (answer.status, answer.location) == (303, f"{root}/queues")
        assert all(name.startswith("__Host-outboxq") for name in visitor.cookies)
        for number in range(6):  # each process serves some of these requests
            page = visitor.get(f"{root}/queue?name=default&number={number}")
            assert page.status == 200
            verb = "resume" if number % 2 else "pause"
            action, fields = form(page.text, verb)
            done = visitor.post(action, fields, Origin="https://tasks.example.org")
            assert done.status == 303
            assert visitor.get(done.location).text.count('class="notice good') == 1
        assert visitor.post(action, fields, Origin="https://evil.example").status == 403
