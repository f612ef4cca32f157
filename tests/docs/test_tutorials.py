"""The framework tutorials, followed as by a reader: flask.md, django.md, fastapi.md and fastapi-async.md in docs/tutorials.

Each file of a page is written, and each command runs in a separate process, in the order of the page. The text after `  # ` is part of the
command's output. The framework's test client sends curl's requests. The other tutorials, the recipes and most how-tos are guides with one
module, which test_guides.py runs.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests import forked
from tests.docs.test_django_page import databases
from tests.forked import ROOT

pytestmark = pytest.mark.in_turn

TUTORIALS = ROOT / "docs" / "tutorials"
FENCE = re.compile(r"^```(python|ini|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WORDS = {"docs/tutorials": 1500} | dict.fromkeys(
    ("docs/how-to", "docs/operate", "docs/troubleshooting/symptoms.md"), 700
)
"""The maximum number of words of a page."""

FLASK = """
import sys
from app import create_app
app = create_app()
form = "application/x-www-form-urlencoded"
print(app.test_client().post(sys.argv[1], data=sys.argv[2], content_type=form).get_data(as_text=True))
from app import db
with app.app_context():
    db.engine.dispose()
"""
DJANGO = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
import django
django.setup()
from django.test import Client
form = "application/x-www-form-urlencoded"
print(Client(SERVER_NAME="localhost").post(sys.argv[1], sys.argv[2], content_type=form).content.decode())
"""
ASGI = """
import asyncio, sys
import httpx
import app
async def send():
    transport = httpx.ASGITransport(app.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        print((await client.request(sys.argv[3], sys.argv[1])).text)
    if hasattr(app, "sessions") and hasattr(app.sessions.kw["bind"], "sync_engine"):
        await app.sessions.kw["bind"].dispose()
    app.engine.dispose()
asyncio.run(send())
"""
"""Programs that send the requests that curl would send. Their arguments are the path, the form and the method."""

ADMITTED = ("-W", "ignore:Using `httpx` with")
"""Starlette's TestClient prefers httpx2, which the page installs but which is not in this environment."""


class Reader:
    """A reader who follows a page step by step."""

    def __init__(self, directory: Path, client: str, **replaced: str) -> None:
        self.directory, self._client, self._replaced = directory, client, replaced
        self._ids: list[str] = []  # ids that were printed as part of an address
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        self._environment = {**environment, "PYTHONPATH": f"{ROOT}:{directory}", "NO_COLOR": "1", "PYTEST_ADDOPTS": ""}

    def follow(self, page: Path, *, skip: str = "") -> None:
        for language, source in FENCE.findall(page.read_text()):
            if language == "sh":
                for line in source.splitlines():
                    self._type(line)
            elif not skip or not source.startswith(f"# {skip}\n"):
                self._write(source)

    def _write(self, source: str) -> None:
        """Write the file that the first line names. The settings are appended to the existing file."""
        name = re.match(r"# (\S+\.(?:py|ini))\n", source)
        assert name, f"a block of a tutorial must begin with the file's name: {source[:40]}"
        for old, new in self._replaced.items():
            source = source.replace(old, new)
        file = self.directory / name[1]
        file.write_text((file.read_text() if file.name == "settings.py" else "") + source)

    def _type(self, line: str) -> None:
        told, _, prints = line.partition("  # ")
        program, *words = shlex.split(told)
        if program == "curl":
            form = "&".join(words[at + 1] for at, word in enumerate(words) if word == "-d")
            method = "POST" if {"-X", "-d"} & {*words} else "GET"
            path = re.sub(r"^https?://[^/]+", "", words[-1]).replace("/ID", f"/{self._ids[0]}" if self._ids else "/ID")
            self._run(["-c", self._client, path, form, method], line, prints)
        elif program == "python":
            self._run(words, line, prints)
        else:
            self._run(["-m", {"django-admin": "django"}.get(program, program), *words], line, prints)

    def _run(self, words: list[str], line: str, prints: str) -> None:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command, directory = [*forked.PYTHON, *ADMITTED, *words], self.directory
        warm = forked.FASTAPI if self._client == ASGI else forked.FRAMEWORKS
        done = forked.run(command, warm=warm, cwd=directory, env=self._environment, **streams, text=True, timeout=240)
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        assert prints in done.stdout, f"{line}\n{done.stdout}"
        self._ids += re.findall(r"/([0-9a-f]{8}-[0-9a-f-]{27})", done.stdout)


CLIENT = """
def test_an_order_is_placed(client):
    assert client.post("/orders?email=ada@example.com&cents=995").status_code == 200
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    return tmp_path / "shop"


@pytest.fixture
def url(database) -> str:
    return make_url(database.url).render_as_string(hide_password=False)


def sqlite_for(database, directory: Path, url: str) -> str:
    """Return the database's address, which replaces the page's SQLite file."""
    return f"sqlite:///{directory}/shop.db" if database.name == "sqlite" else url


def drop(database) -> None:
    """Drop the table that the reader has created in addition to outboxq's tables."""
    if database.name == "postgresql":
        database.run("DROP TABLE IF EXISTS orders")


@pytest.mark.current  # the page's model_class is from Flask-SQLAlchemy 3.1, which requires SQLAlchemy 2.0.16
def test_the_flask_tutorial_works(database, url, directory):
    address = {'"sqlite:///shop.db"': repr(sqlite_for(database, directory, url))}
    Reader(directory, FLASK, **address).follow(TUTORIALS / "flask.md")
    drop(database)


def test_the_sqlalchemy_tutorial_works(database, url, directory):
    address = {'"sqlite:///shop.db"': repr(sqlite_for(database, directory, url))}
    Reader(directory, "", **address).follow(TUTORIALS / "sqlalchemy.md")
    drop(database)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_django_tutorial_works(kind, request, directory):
    """The test uses its own databases, because the page migrates them."""
    replaced = {}
    if kind == "postgresql":
        default = databases(request.getfixturevalue("postgresql_url"))["default"]
        line = 'DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}'
        replaced = {line: f"DATABASES = {{'default': {default!r}}}"}
    Reader(directory, DJANGO, **replaced).follow(TUTORIALS / "django.md")


def test_the_fastapi_tutorial_works(database, url, directory):
    address = {'"sqlite:///shop.db"': repr(sqlite_for(database, directory, url))}
    reader = Reader(directory, ASGI, **address)
    reader.follow(TUTORIALS / "fastapi.md")
    (directory / "test_client.py").write_text(CLIENT)
    reader._type("python -m pytest -q test_client.py  # 1 passed")
    reader._type("python -c 'import app; print(len(app.outbox.store.tasks()))'  # 1\n")
    drop(database)


def test_the_asynchronous_fastapi_tutorial_works(database, url, directory):
    page = TUTORIALS / "fastapi-async.md"
    if database.name == "postgresql":
        address = {'"postgresql+psycopg://shop@localhost/shop"': repr(url)}
        Reader(directory, ASGI, **address).follow(page, skip="sqlite_app.py")
        drop(database)
    else:  # the variant for SQLite, with the page's commands
        [source] = [source for _, source in FENCE.findall(page.read_text()) if source.startswith("# sqlite_app.py\n")]
        reader = Reader(directory, ASGI)
        (directory / "app.py").write_text(source)
        for line in (
            "python -c 'import app; app.Base.metadata.create_all(app.engine)'",
            "outboxq upgrade app:outbox",
            'curl -X POST "http://127.0.0.1:8000/orders?cents=995"  # "order":1',
            "outboxq worker app:outbox --burst",
            "outboxq task list --app app:outbox  # completed",
        ):
            reader._type(line)


@pytest.mark.parametrize("folder", WORDS)
def test_no_page_is_too_long(folder):
    path = ROOT / folder
    pages = path.glob("*.md") if path.is_dir() else [path]
    words = {
        page.name: len(re.findall(r"\S*\w\S*", page.read_text())) for page in pages
    }  # bars of tables do not count as words
    assert words
    assert {name: count for name, count in words.items() if count > WORDS[folder]} == {}
