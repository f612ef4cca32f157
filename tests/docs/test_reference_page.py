"""The reference page: it matches the code, and omits nothing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import outboxq
from outboxq import Outbox, Task, TaskContext
from outboxq.testing import Harness
from tests.docs import reference
from tests.docs.tables import between

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference.md").read_text()


def test_the_page_matches_the_code():
    assert reference.page() == TEXT, "run: python -m tests.docs.reference"


def test_the_page_about_the_commands_has_the_same_exit_codes():
    part = between(reference.COMMAND_LINE, reference.CODES_PART)
    assert part == reference.codes_of_commands(), "run: python -m tests.docs.reference"


@pytest.mark.parametrize("function", [Outbox.task, Task.using], ids=["task", "using"])
def test_every_option_has_a_sentence_in_its_docstring(function):
    options = [name for name in inspect.signature(function).parameters if name not in {"self", "function"}]
    assert list(reference.arguments(function)) == options
    for said in reference.arguments(function).values():
        assert said.endswith((".", ")"))


def test_the_signature_of_outbox_task_shows_all_options():
    signature = inspect.signature(Outbox.task)
    assert signature.parameters["queue"].default == "default"
    assert signature.parameters["function"].default is not inspect.Parameter.empty
    assert not [one for one in signature.parameters.values() if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


def test_every_context_attribute_is_documented_or_internal():
    public = {name for name in dir(TaskContext) if not name.startswith("_")}
    said = set(re.findall(r"`ctx\.(\w+)", TEXT))
    assert public - said <= reference.NOT_OF_HANDLERS
    assert said.isdisjoint(reference.NOT_OF_HANDLERS)


def test_the_page_lists_every_exported_exception():
    exported = {
        name
        for name in outboxq.__all__
        if inspect.isclass(kind := getattr(outboxq, name)) and issubclass(kind, Exception)
    }
    assert {name for name in exported if f"`{name}" not in TEXT} == set()


def test_the_page_lists_every_environment_variable():
    """The keys of Flask's configuration and of Django's settings are on those frameworks' pages."""
    sources = [path for path in (ROOT / "outboxq").rglob("*.py") if "contrib" not in path.parts]
    named = {one for path in sources for one in re.findall(r"\bOUTBOXQ_[A-Z_]+", path.read_text())}
    assert named <= set(re.findall(r"`(OUTBOXQ_[A-Z_]+)`", TEXT)), "a variable is missing"


def test_the_page_lists_every_exit_code():
    codes = {code for name, code in vars(reference.console).items() if name.startswith("EXIT_")}
    assert codes | {0, 1} | set(reference.OF_COMMANDS) == {
        int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)
    }


def test_each_public_attribute_is_in_the_reference():
    outbox = Outbox()
    task = outbox.task(name="a")(lambda: None)
    pages = {"outbox": outbox, "task": task, "task ": task.using(), "harness": Harness(outbox), "store": outbox.store}
    left_out = {"outbox": {"integration", "schema", "tasks"}, "store": {"engine", "schema", "ensure_current"}}
    for page, target in pages.items():
        names = {name for name in dir(target) if not name.startswith("_")} - left_out.get(page, set())
        said = set(re.findall(r"\w+", (ROOT / "docs" / "reference" / f"{page.strip()}.md").read_text()))
        assert names <= said, page
