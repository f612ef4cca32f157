"""The pages in docs/reference: they match the code, and every public name is on one of them."""

from __future__ import annotations

import inspect
from contextlib import suppress

import pytest

import outboxq
from outboxq import testing
from outboxq.cli import main
from outboxq.errors import InvalidTransition, LeaseLost
from outboxq.model import TaskStatus
from tests.contract.test_states import ACTIONS, brought_to
from tests.docs import lists, objects
from tests.docs.tables import between
from website import pictures

MADE_UP = {"error"}
"""A key that `ACTIONS` adds to every end, including ends that never have it."""


@pytest.mark.parametrize("page", objects.PAGES)
def test_a_page_of_objects_matches_the_code(page):
    written = between(objects.FOLDER / f"{page}.md", objects.PART)
    assert written == objects.part(page), "run: python -m tests.docs.objects"


@pytest.mark.current  # older releases of click and SQLAlchemy word metavariables and types differently
@pytest.mark.parametrize("page", lists.PAGES)
def test_a_page_with_a_list_matches_the_code(page):
    assert between(lists.FOLDER / f"{page}.md", "list") == lists.PAGES[page](), "run: python -m tests.docs.lists"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_matches_the_output_of_the_code(name):
    assert (pictures.FOLDER / name).read_text() == pictures.PICTURES[name](), "run: python -m website.pictures"


def test_every_public_name_is_on_one_page():
    """An exception is on the page of exceptions, and may also be on another page."""
    placed = [name for page in objects.PAGES for name in objects.names_of(page)]
    assert len(placed) == len(set(placed))
    public = {*outboxq.__all__, *testing.__all__}
    raised = {name for name in outboxq.__all__ if lists.is_error(getattr(outboxq, name))}
    assert public - {*placed} == raised
    assert {*objects.BY_NAME} - raised == {*placed}


def test_every_public_name_has_a_docstring():
    without = [name for name in outboxq.__all__ if not inspect.getdoc(getattr(outboxq, name))]
    assert without == []


@pytest.mark.parametrize("names", [objects.SUPPORTED, objects.INTERNAL], ids=["supported", "internal"])
def test_names_listed_as_special_exist(names):
    """A list of names that no longer exist would hide a later name."""
    for owner, members in names.items():
        kind, _, noun = owner.partition(".")
        found = objects.BY_NAME.get(owner) or getattr(objects.BY_NAME[kind], noun).func
        known = {*dir(found), *(one for base in found.__mro__ for one in getattr(base, "__annotations__", ()))}
        if owner != "TaskContext":  # test_reference_page.py checks its names
            assert set(members.split()) - known == set(), owner


def test_the_page_lists_every_command_and_option():
    text = (lists.FOLDER / "commands.md").read_text()
    for name, command in lists.visible(main, "outboxq"):
        _, _, after = text.partition(f"\n## {name}\n")
        section, _, _ = after.partition("\n## ")
        options = {name for one in command.params for name in one.opts if name.startswith("--") and not one.hidden}
        assert {name for name in options - {"--help"} if f"`{name}" not in section} == set(), name


def test_the_page_lists_every_table_and_column():
    text = (lists.FOLDER / "tables.md").read_text()
    for table in lists.tasks.metadata.sorted_tables:
        _, _, after = text.partition(f"\n## {table.name}\n")
        section, _, _ = after.partition("\n## ")
        assert [column.name for column in table.columns if f"| `{column.name}`" not in section] == []


@pytest.mark.parametrize("status", TaskStatus)
def test_event_data_has_only_documented_keys(database, status):
    for number, act in enumerate(ACTIONS.values()):
        claim = brought_to(database, status, f"{status}-{number}")
        with suppress(InvalidTransition, LeaseLost):
            act(database, claim)
        for event in database.frozen.history(claim.id):
            unknown = event.event_data.keys() - {*lists.EVENT_DATA[event.event_type].split()} - MADE_UP
            assert not unknown, f"{event.event_type}: {unknown}"


def test_every_exception_names_calls_that_exist():
    found = {call for kind in lists.tree(outboxq.OutboxqError) for call in lists.raisers(kind.__name__)}
    assert len(found) > 30
