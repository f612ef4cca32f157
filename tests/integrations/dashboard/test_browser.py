"""The tests' own browser: it notices problems, and does not disturb other tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import chromium, forked, npm
from tests.browser import PHONE
from tests.integrations.dashboard.serving import Site

ROOT = Path(__file__).parents[3]
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


def test_a_tab_notices_problems_of_a_page(open_tab, wrong):
    tab = open_tab(wrong.url, size=PHONE)
    tab.open()
    told = " ".join(tab.problems)
    assert "error: hello" in told
    assert "exception: uncaught" in told
    assert "request to another site: http://127.0.0.2:9/x.png" in told
    assert [line.split(" ")[0] for line in tab.layout()] == ["the", "DIV.null"]
    found = " ".join(tab.accessibility())
    assert "image-alt" in found
    assert "landmark-one-main" in found


def test_a_tab_finds_no_problems_in_a_correct_page(open_tab):
    with served(RIGHT) as site:
        tab = open_tab(site.url, size=PHONE)
        tab.open()
        assert (tab.problems, tab.layout(), tab.accessibility()) == ([], [], [])
        assert tab.page.locator("body").get_attribute("data-ran") == "yes"


def test_a_tab_notices_violations_of_the_content_policy(open_tab):
    with served(RIGHT, ("Content-Security-Policy", "default-src 'none'")) as site:
        tab = open_tab(site.url)
        tab.open()
        assert "script-src" in " ".join(tab.problems)


def test_a_tab_without_scripts_runs_none(open_tab):
    with served(RIGHT) as site:
        tab = open_tab(site.url, javascript=False)
        tab.open()
        assert tab.page.locator("body").get_attribute("data-ran") is None


def test_event_loops_can_run_beside_the_browser(browser):
    """The browser does not prevent an event loop in the main thread, in which this test runs."""
    assert browser.version
    asyncio.run(asyncio.sleep(0))


def test_a_named_browser_is_used_and_must_exist(monkeypatch):
    monkeypatch.setenv(chromium.NAMED_BY, shutil.which("sh") or "")
    assert chromium.find().path.name in {"sh", "dash", "bash", "busybox"}
    monkeypatch.setenv(chromium.NAMED_BY, "/nowhere/chromium")
    with pytest.raises(FileNotFoundError, match="/nowhere/chromium"):
        chromium.find()


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Simulate a supported machine without a browser; return the directory into which one would be downloaded."""
    for name in (chromium.NAMED_BY, "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(npm.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(npm.sys, "platform", "linux")
    return npm.home(f"chromium-{chromium.VERSION}")


def test_a_browser_counts_as_missing_only_if_it_may_not_be_downloaded(bare, monkeypatch):
    assert chromium.is_missing()
    monkeypatch.setenv("CI", "true")
    assert not chromium.is_missing()
    monkeypatch.delenv("CI")
    bare.mkdir(parents=True)
    assert not chromium.is_missing()


def test_the_packaged_browser_finds_its_libraries(bare):
    bare.mkdir(parents=True)
    found = chromium.find()
    assert found.path == bare / "chromium"
    assert found.variables["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(bare / "lib")


def test_an_unsupported_machine_is_refused_with_advice(bare, monkeypatch):
    monkeypatch.setattr(npm.platform, "machine", lambda: "aarch64")
    with pytest.raises(RuntimeError, match="is for Linux on x86-64 only") as raised:
        chromium.find()
    assert raised.value.__notes__ == ["install Chromium, or name one in OUTBOXQ_TEST_BROWSER"]


def test_without_a_browser_its_tests_are_omitted_and_the_run_reports_that(tmp_path):
    """Run pytest with the variables of a machine without a browser. On CI, nothing is left out: see `is_missing`."""
    variables = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    variables["PYTEST_ADDOPTS"] = ""
    command = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "-p", "no:cacheprovider", __file__]
    kept = {name: value for name, value in os.environ.items() if name not in {"CI", chromium.NAMED_BY}}
    environment = {**kept, **variables}
    done = forked.run(
        command, warm=forked.FRAMEWORKS, env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    )
    told = done.stdout
    assert "test_a_tab_notices" not in told
    assert "test_a_named_browser" in told
    assert chromium.LEFT_OUT in told
