"""The site: it has every page, each link has a target, and it loads nothing from another host."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID
from xml.etree import ElementTree as ET
from zipfile import ZipFile

import click
import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outboxq import Outbox, configure_sqlite
from outboxq.cli import main
from outboxq.contrib.flask import Outboxq
from outboxq.task.schedules import RETENTION
from tests import postgres
from tests.docs.crawl import crawl, served
from tests.docs.test_readme import DOCS
from website import examples, links, stage, terminal
from website.build import build
from website.navigation import NAVIGATION, sections


@pytest.fixture(scope="module")
def site():
    """The site. The first process that needs it builds it for all processes of the run."""
    shared = Path(os.environ[postgres.INITIALISED])
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site.built").exists():
            build(shared / "site")
            (shared / "site.built").touch()
    return shared / "site"


@pytest.mark.apart
@pytest.mark.current  # only one version of Zensical is installed
def test_the_site_builds_with_a_markdown_file_for_each_page(site):
    texts = {path.relative_to(site) for path in site.rglob("*.md")}
    assert len(texts) == len(stage.pages())
    assert [text for text in texts if not (site / text.with_suffix(".html")).is_file()] == []
    listed = re.findall(r"^- \[.+\]\((.+)\)$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert {Path(text) for text in listed} == texts
    run = Path("operate") / "run-a-worker"
    assert ">FastAPI</label>" in (site / run.with_suffix(".html")).read_text()
    assert "===" not in (site / run.with_suffix(".md")).read_text()
    assert 'href="./leases.md"' in (site / "explanation" / "leases.html").read_text()
    assert "lease" in (site / "search.json").read_text()


@pytest.mark.apart
@pytest.mark.current
def test_pages_are_legible_at_each_window_size_and_color_scheme(site, browser):
    """The home page, a page with tabs, and a page with a long table. `nox -s site_browser` checks all pages in full."""
    pages = ["index.html", "operate/stop-and-deploy.html", "reference/events.html"]
    with served(site) as address:
        assert browser.run(crawl, browser, address, pages, quick=True) == []


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.full)])
def test_an_illegible_page_is_detected(tmp_path, browser, quick):
    page = (
        '<html lang="en"><title>p</title><main><h1>p</h1><p style="color: #ddd">pale</p><img src="none.png" alt="x">'
        '<div style="width: 40px; overflow: hidden">unbreakable</div><pre style="width: 2000px">wide</pre></main>'
    )
    (tmp_path / "page.html").write_text(page)
    with served(tmp_path) as address:
        found = "\n".join(browser.run(crawl, browser, address, ["page.html"], quick=quick))
    for fault in (
        "(1440 px, light): color-contrast",
        "none.png was not loaded",
        "cut off: : unbreakable",
        "(390 px, dark): the page is 2",
    ):
        assert fault in found


def test_each_page_is_in_one_section():
    titles = stage.pages()
    listed = [page for _, pages in sections(titles) for page in pages]
    assert sorted(listed) == sorted(titles)
    assert len(NAVIGATION) <= 8


def test_a_page_that_no_section_covers_is_refused():
    with pytest.raises(LookupError, match=r"lacks LOST\.md"):
        list(sections({**stage.pages(), PurePosixPath("LOST.md"): "Lost"}))


def test_links_are_rewritten_except_in_code():
    page = PurePosixPath("docs/README.md")
    text = "[a](retries.md#the-default) [b](../README.md) [c](#here) [d](https://example.org/)\n```\n[e](retries.md)\n```\n"
    named: list[PurePosixPath] = []
    assert stage.relinked(text, page, named.append) == text.replace("../README.md", "index.md")
    assert named == [PurePosixPath("docs/retries.md"), PurePosixPath("README.md")]
    moved = stage.relinked("[x](../pyproject.toml)", PurePosixPath("docs/README.md"), named.append)
    assert moved == "[x](files/pyproject.toml.txt)"
    with pytest.raises(LookupError, match="is not a file"):
        stage.relinked("[x](nowhere.md)", page, named.append)


@pytest.mark.parametrize("name", ["django_shop", "fastapi_shop", "flask_shop", "two_services"])
def test_the_page_of_an_example_has_all_of_its_files(name, tmp_path):
    """Files that a run of the example leaves behind are not listed."""
    folder = tmp_path / name
    shutil.copytree(stage.ROOT / "examples" / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    known = {path: path.read_text() for path in folder.rglob("*") if path.is_file() and path.name != "README.md"}
    for left in ("shop.db", "rabbitmq/output.log", ".venv/lib/site.py"):
        (folder / left).parent.mkdir(parents=True, exist_ok=True)
        (folder / left).write_text("left")
    page = examples.with_files((folder / "README.md").read_text(), folder, f"{name}.zip")
    shown = re.findall(r"^### `([^`]+)`\n\n(?:```\w+\n(.*?)```$|This file is empty\.$)", page, re.DOTALL | re.MULTILINE)
    assert {folder / path: code for path, code in shown} == known
    assert "with [these files](#the-files)" in page
    examples.pack(folder, tmp_path / "packed.zip")
    with ZipFile(tmp_path / "packed.zip") as packed:
        assert {tmp_path / path: packed.read(path).decode() for path in packed.namelist()} == known


def test_an_example_without_a_directory_for_its_commands_is_refused(tmp_path):
    with pytest.raises(LookupError, match="In this directory"):
        examples.with_files("# An example\n", tmp_path, "example.zip")


def test_blocks_under_framework_names_become_tabs():
    block = "```console\n$ run\n```\n"
    text = f"Before.\n\n**Django**\n\n{block}\n**Flask**\n\n{block}\nAfter.\n"
    code = "    ```console\n    $ run\n    ```\n"
    assert stage.tabbed(text) == f'Before.\n\n=== "Django"\n\n{code}\n=== "Flask"\n\n{code}\nAfter.\n'
    alone = f"**Django**\n\n{block}\n**Others**\n\n{block}"
    assert stage.tabbed(alone) == alone


def test_tabs_of_the_home_page_show_only_lines_that_are_tested_elsewhere():
    """The tests of each framework's pages execute these lines."""
    pages = {
        "Django": ["tutorials/django"],
        "Flask": ["tutorials/flask"],
        "FastAPI": ["tutorials/fastapi"],
        "SQLAlchemy": ["tutorials/sqlalchemy"],
    }
    [group] = stage.TABS.finditer((stage.ROOT / "docs" / "index.md").read_text())
    tabs = re.findall(r"\*\*(\w+)\*\*\n\n```py\n(.*?)```", group[0], re.DOTALL)
    assert [label for label, _ in tabs] == [*pages]
    for label, code in tabs:
        executed = "".join((stage.ROOT / "docs" / f"{page}.md").read_text() for page in pages[label])
        known = {line.strip() for line in executed.splitlines()}
        assert [line for line in code.splitlines() if line.strip() not in known] == []


def test_each_tab_about_retention_sets_retention(tmp_path):
    [group] = stage.TABS.finditer((stage.ROOT / "docs" / "operate" / "retention.md").read_text())
    given = {
        "timedelta": timedelta,
        "Outbox": Outbox,
        "Outboxq": Outboxq,
        "engine": create_engine(f"sqlite:///{tmp_path}/shop.db"),
    }
    for label, code in re.findall(r"\*\*(\w+)\*\*\n\n```py\n(.*?)```", group[0], re.DOTALL):
        names: dict[str, Any] = {**given}
        exec(code, names)
        if label == "Django":
            settings = (stage.ROOT / "outboxq" / "contrib" / "django" / "django_outbox.py").read_text()
            assert [key for key in names["OUTBOXQ"] if f'    "{key}": ' not in settings] == []
        else:
            assert [one.name for one in names["outbox"].tasks.schedules] == [RETENTION], label


def test_the_tabs_for_all_frameworks_have_the_same_commands():
    """Django has its own command for the tables."""
    [group] = stage.TABS.finditer((stage.ROOT / "docs" / "command-line.md").read_text())
    tabs = dict(re.findall(r"\*\*(\w+)\*\*\n\n```console\n(.*?)```", group[0], re.DOTALL))
    plain = tabs["SQLAlchemy"].replace(" shop:outbox", "")
    assert tabs["FastAPI"] == tabs["SQLAlchemy"]
    assert tabs["Flask"] == plain.replace("$ outboxq", "$ flask outboxq")
    plain = plain.replace("$ outboxq upgrade", "$ migrate")
    assert tabs["Django"] == plain.replace("$ ", "$ python manage.py ")
    for line in tabs["SQLAlchemy"].replace(" ID ", f" {UUID(int=0)} ").splitlines():
        command, [_, _, *words] = main, line.split()
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        with command.make_context("outboxq", words) as context:
            assert "shop:outbox" in context.params.values(), line


def test_commands_in_the_installation_tabs_are_on_the_command_line_page():
    [group] = stage.TABS.finditer((stage.ROOT / "docs" / "install.md").read_text())
    [known] = stage.TABS.finditer((stage.ROOT / "docs" / "command-line.md").read_text())
    tabs, commands = (
        dict(re.findall(r"\*\*(\w+)\*\*\n\n```console\n(.*?)```", one[0], re.DOTALL)) for one in (group, known)
    )
    assert [*tabs] == [*commands]
    for label, lines in tabs.items():
        assert len(lines.splitlines()) == 2
        assert [line for line in lines.splitlines() if line not in commands[label].splitlines()] == []


@pytest.mark.parametrize("page", ["consumers", "batches", "schedules"])
def test_the_code_in_a_tab_works_in_its_framework(page, tmp_path):
    """Django's lines are the same as Flask's, except for the origin of the outbox."""
    [group] = stage.TABS.finditer((stage.ROOT / "docs" / f"{page}.md").read_text())
    tabs = dict(re.findall(r"\*\*(\w+)\*\*\n\n```py\n(.*?)```", group[0], re.DOTALL))
    without = re.compile(r"^(?:from .*|outbox = .*)\n+", re.MULTILINE)
    assert without.sub("", tabs["Django"]) == without.sub("", tabs["Flask"])
    assert tabs["FastAPI"] == tabs["SQLAlchemy"]
    url = f"sqlite:///{tmp_path}/shop.db"

    def declared(outbox: Outbox) -> dict[str, Any]:
        greet = outbox.task(name="shop.greet")(lambda customer: None)
        import_line = outbox.task(name="shop.import_line")(lambda line: None)
        report = outbox.task(name="shop.report")(lambda file: None)
        return {"outbox": outbox, "greet": greet, "import_line": import_line, "report": report}

    db, app = SQLAlchemy(), Flask("shop")
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db.init_app(app)
    names = declared(Outboxq())
    names["outbox"].init_app(app)
    with app.app_context():
        names["outbox"].upgrade()
        exec(tabs["Flask"], names)
        db.session.commit()
        _assert_done(page, names["outbox"])
        db.engine.dispose()

    engine = configure_sqlite(create_engine(f"{url}.plain"))
    names = declared(Outbox(engine))
    names["outbox"].upgrade()
    with Session(engine) as session, session.begin():
        exec(tabs["SQLAlchemy"], {**names, "Outbox": Outbox, "engine": engine, "session": session}, names)
    _assert_done(page, names["outbox"])
    engine.dispose()


def _assert_done(page: str, outbox: Outbox) -> None:
    if page == "schedules":
        assert [one.name for one in outbox.tasks.schedules] == ["shop.nightly"]
    else:
        assert {one.task_name for one in outbox.store.tasks()} == {
            "consumers": {"shop.greet"},
            "batches": {"shop.import_line"},
        }[page]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<a href="b.html#there">', None),
        ('<a href="/b.html">', None),
        ('<a href="https://example.org/">', None),
        ('<a href="c.html">', "a.html links to c.html, which does not exist."),
        ('<a href="b.html#nowhere">', "a.html links to b.html#nowhere, and the page has no such anchor."),
        ('<a href="#nowhere">', "a.html links to #nowhere, and the page has no such anchor."),
        ('<script src="https://example.org/x.js">', "a.html loads https://example.org/x.js from another host."),
        ('<link rel="stylesheet" href="//example.org/x.css">', "a.html loads //example.org/x.css from another host."),
    ],
)
def test_a_broken_link_is_detected(tmp_path, body, complaint):
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<h2 id="there">There</h2>')
    assert list(links.broken(tmp_path)) == ([complaint] if complaint else [])


def test_the_pages_use_only_plain_markdown():
    """Sphinx can read the same pages, because they have no attributes in braces, no macros, and no HTML except comments and line breaks."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", DOCS, flags=re.DOTALL)
    assert re.findall(r"\{[:%{#.].*?\}", prose) == []
    assert set(re.findall(r"<(?!https?:)(\w+)", prose)) <= {"br"}


def test_the_demo_animation_ends_with_every_check():
    lines = [f"orders {n} · completed {n}" for n in range(40)]
    lines += ["", "ok   nothing is left", "ok   <all> is well", "", "Nothing was lost or done twice; 3.2 s."]
    drawn = terminal.draw(lines)
    ET.fromstring(drawn)
    assert drawn.count('class="passing"') == terminal.FRAMES - 1
    assert re.findall(r'class="staying.*>(.+)</text>', drawn) == [
        "orders 39 · completed 39",
        "ok   nothing is left",
        "ok   &lt;all&gt; is well",
        "Nothing was lost or done twice.",
    ]


def test_the_recorded_demo_ended_successfully():
    shown = re.findall(r'class="staying.*>(.+)</text>', terminal.PICTURE.read_text())
    assert shown[-1] == "Nothing was lost or done twice."
    assert len([line for line in shown if line.startswith("ok ")]) == 9
