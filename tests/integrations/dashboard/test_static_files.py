"""The style sheet and the scripts are served, and no other files are."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest
from werkzeug.test import Client

from outboxq import Outbox
from outboxq.web import application

STATIC = files("outboxq.web").joinpath("static")
HTMX = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
"""SHA-256 of dist/htmx.min.js in npm's htmx.org 4.0.1."""

HARM = re.compile(r"""hx-on|hx-vals|hx-live|js:|javascript:|\son[a-z]+=["']|<style|\sstyle=|every \S+ ?\[""")
"""Markup that the content security policy would block."""


@pytest.fixture
def client(tmp_path):
    return Client(application(Outbox(f"sqlite:///{tmp_path}/none.db")))


def test_htmx_is_the_unmodified_published_file():
    content = STATIC.joinpath("htmx.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == HTMX
    assert b'version="4.0.1"' in content
    assert "Zero-Clause BSD" in STATIC.joinpath("htmx.LICENSE.txt").read_text()


def test_templates_use_no_htmx_feature_that_needs_eval():
    templates = Path(str(files("outboxq.web").joinpath("templates")))
    found = [*templates.rglob("*.html")]
    assert {"base.html", "overview.html"} <= {one.name for one in found}
    for one in found:
        text = one.read_text()
        assert not HARM.search(text), one.name
        assert all("src=" in script for script in re.findall(r"<script[^>]*>", text)), one.name


@pytest.mark.parametrize("name", ["style.css", "outboxq.js", "comforts.js", "htmx.min.js"])
def test_a_file_with_its_hash_in_the_path_is_cached_forever(client, name):
    version = hashlib.sha256(STATIC.joinpath(name).read_bytes()).hexdigest()[:16]
    found = client.get(f"/static/{version}/{name}")
    assert found.status_code == 200
    assert found.data == STATIC.joinpath(name).read_bytes()
    assert "immutable" in found.headers["Cache-Control"]
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert client.get(f"/static/{version}/{name}", headers={"If-None-Match": found.headers["ETag"]}).status_code == 304


def test_a_file_from_another_release_is_not_cached(client):
    assert client.get("/static/0000000000000000/outboxq.js").headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/static/x/../dashboard.py",
        "/static/x/..%2f..%2fdashboard.py",
        "/static/x/%2e%2e/templates/base.html",
        "/static/../templates/base.html",
        "/static//etc/passwd",
        "/static/x//etc/passwd",
        "/static/x/..\\dashboard.py",
        "/static/x/",
        "/static/",
        "/static/x/style.css%00.js",
    ],
)
def test_no_path_leaves_the_directory_of_static_files(client, path):
    assert client.get(path, environ_base={"REMOTE_ADDR": "127.0.0.1"}).status_code == 404


def test_a_static_file_accepts_only_get_and_head(client):
    assert client.head("/static/x/style.css").data == b""
    assert client.post("/static/x/style.css").status_code == 405
