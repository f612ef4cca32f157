"""The tests' own browser: what it notices, and that it disturbs no other test."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest

from tests import chromium
from tests.browser import PHONE
from tests.integrations.dashboard.serving import Site

WRONG = b"""<!doctype html><html lang="en"><title>Wrong</title><body>
<img src="http://127.0.0.2:9/x.png"><div style="width: 700px">wide</div>
<div style="overflow-x: auto"><p style="width: 900px">scrolls by itself</p></div>
<script>console.error("hello"); throw new Error("uncaught")</script></body>"""
RIGHT = b"""<!doctype html><html lang="en"><title>Right</title><body><main><h1>Right</h1>
<script>document.body.dataset.ran = "yes"</script></main></body>"""


def served(page, *headers):
    def application(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/html"), *headers])
        return [page]

    return Site(application)


@pytest.fixture
def wrong():
    with served(WRONG) as site:
        yield site


def test_a_tab_notices_what_is_wrong(open_tab, wrong):
    tab = open_tab(wrong.url, size=PHONE)
    tab.open()
    told = " ".join(tab.problems)
    assert "error: hello" in told
    assert "exception: uncaught" in told
    assert "request to another site: http://127.0.0.2:9/x.png" in told
    assert [line.split(" ")[0] for line in tab.overflow()] == ["the", "DIV.null"]
    found = " ".join(tab.accessibility())
    assert "image-alt" in found
    assert "landmark-one-main" in found


def test_a_tab_finds_nothing_wrong_with_what_is_right(open_tab):
    with served(RIGHT) as site:
        tab = open_tab(site.url, size=PHONE)
        tab.open()
        assert (tab.problems, tab.overflow(), tab.accessibility()) == ([], [], [])
        assert tab.page.locator("body").get_attribute("data-ran") == "yes"


def test_a_tab_notices_what_the_policy_forbids(open_tab):
    with served(RIGHT, ("Content-Security-Policy", "default-src 'none'")) as site:
        tab = open_tab(site.url)
        tab.open()
        assert "script-src" in " ".join(tab.problems)


def test_a_tab_without_scripts_runs_none(open_tab):
    with served(RIGHT) as site:
        tab = open_tab(site.url, javascript=False)
        tab.open()
        assert tab.page.locator("body").get_attribute("data-ran") is None


def test_loops_of_other_tests_run_beside_the_browser(browser):
    """Also those of the main thread, in which this test runs."""
    assert browser.version
    asyncio.run(asyncio.sleep(0))


def test_a_named_browser_is_the_one_and_must_be_there(monkeypatch):
    monkeypatch.setenv(chromium.NAMED_BY, shutil.which("sh") or "")
    assert chromium.find().path.name in {"sh", "dash", "bash", "busybox"}
    monkeypatch.setenv(chromium.NAMED_BY, "/nowhere/chromium")
    with pytest.raises(FileNotFoundError, match="/nowhere/chromium"):
        chromium.find()


def test_without_a_browser_a_developer_is_told_and_ci_fetches_one(monkeypatch, tmp_path):
    for name in (chromium.NAMED_BY, "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(chromium.NoBrowser, match="nox -s browser"):
        chromium.find()
    fetched = []
    monkeypatch.setattr(chromium, "_fetch", lambda home: (home.mkdir(), fetched.append(home)))
    monkeypatch.setattr(chromium.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(chromium.sys, "platform", "linux")
    monkeypatch.setenv("CI", "true")
    found = chromium.find()
    assert fetched == [tmp_path / "outboxq-tests" / f"chromium-{chromium.VERSION}"]
    assert found.path == fetched[0] / "chromium"
    assert found.variables["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(fetched[0] / "lib")
    monkeypatch.delenv("CI")
    assert chromium.find() == found
    assert len(fetched) == 1
