"""The verbs that people use: each has a command, an action in the dashboard, and a right."""

from __future__ import annotations

import click
import pytest

from outboxq.cli import main
from outboxq.errors import InvalidArgument
from outboxq.operating.reading import read_limit, read_order, read_priority, read_rate, read_span
from outboxq.operating.verb import Noun, Outcome, State, Verb
from outboxq.operating.verbs import LIMIT, VERBS, verb_of, verbs_of
from outboxq.web.pages import ROUTES
from outboxq.web.pages.actions import Action

each_verb = pytest.mark.parametrize("verb", VERBS, ids=lambda one: f"{one.noun}-{one.name}")


def command_of(words: tuple[str, ...]) -> click.Command:
    found: click.Command = main
    for word in words:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None, f"there is no command {' '.join(words)}"
        found = inner
    return found


@each_verb
def test_each_verb_has_a_command_with_the_options_of_its_fields(verb: Verb):
    command = command_of(verb.words[:2])
    known = {name for one in command.params for name in one.opts}
    names = {one.option if one.option.startswith("--") else one.name for one in verb.fields}
    assert names | set(verb.words[2:]) <= known


@each_verb
def test_each_verb_is_an_action_of_the_dashboard(verb: Verb):
    route = next(one for one in ROUTES if one.name == f"{verb.noun}_{verb.key}")
    assert route.is_action
    assert route.path.endswith(f"/{verb.name}")


@each_verb
def test_a_verb_with_an_undo_is_its_opposite_and_needs_no_values(verb: Verb):
    if verb.undo:
        [other] = [one for one in verbs_of(verb.noun) if one.name == verb.undo]
        assert other.undo == verb.name
        assert not any(field.is_required for field in other.fields)


@each_verb
def test_each_verb_has_a_description_and_labels(verb: Verb):
    first, _, _ = verb.help.partition("\n\n")
    assert first.endswith(".")
    assert verb.label
    assert all(one.label for one in verb.fields if one.in_form and one.read is not None)


def test_one_click_does_nothing_irreversible():
    """A button without a form is only for actions that can be undone, or that a person can end on the next page."""
    one_click = [one for one in VERBS if not one.undo and not Action(verb=one, url="").fields and not one.is_final]
    assert [one.recorded_as for one in one_click] == ["task run-now", "schedule trigger", "workers stacks"]


def test_a_verb_is_found_by_its_command_and_options():
    assert verb_of(("task", "cancel", "an id")) in verbs_of(Noun.TASK)
    found = verb_of(("task", "cancel", "an id", "--force"))
    assert found is not None
    assert found.name == "cancel-now"
    assert verb_of(("task", "cancel", "an id", "--other")) is None
    assert verb_of(("verify", "--repair")) is None


@pytest.mark.parametrize("noun", Noun)
def test_no_state_offers_a_verb_and_its_opposite(noun: Noun):
    for is_paused in (True, False):
        offered = {one.name for one in verbs_of(noun) if one.offered(State(is_paused=is_paused))}
        assert not {"pause", "resume"} <= offered


def test_the_sentence_about_several_tasks_has_a_plural_verb():
    outcome = Outcome(subject="task 1", predicate="was discarded", record=None, answer="")
    assert (outcome.sentence, outcome.of_many) == ("task 1 was discarded", "were discarded")
    already = Outcome(subject="task 1", predicate="already had priority 5", record=None, answer="")
    assert already.of_many == "already had priority 5"


def test_a_form_is_read_like_the_options_of_the_command():
    empty = {**dict.fromkeys(("concurrency", "rate", "concurrency_per_key", "rate_per_key"), None), "reason": ""}
    assert LIMIT.of_form({}) == empty
    given = LIMIT.of_form({"concurrency": " 5 ", "starts": "100", "seconds": "60", "key_concurrency": "none"})
    assert given == {**empty, "concurrency": read_limit("5"), "rate": read_rate("100/1m")}
    with pytest.raises(InvalidArgument, match="^Starts: a rate needs a number of starts and a number of seconds"):
        LIMIT.of_form({"starts": "100"})


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((read_limit, text) for text in ("0", "-1", "1.5", "a few", "²", "1234567890")),
        *((read_rate, text) for text in ("5", "5/", "/1m", "0/1m", "5/0s", "none/1m")),
        *((read_priority, text) for text in ("101", "-101", "high", "", "1e1")),
        *((read_span, text) for text in ("", "5", "1y", "-1h", "99999999d", "٣s")),
        (read_order, "newest"),
    ],
)
def test_unreadable_values_are_refused(read, text):
    with pytest.raises(InvalidArgument):
        read(text)
