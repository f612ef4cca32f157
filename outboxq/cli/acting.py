"""Commands made from verbs: what a person can do to one task, queue, schedule or batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..operating.verbs import Field, Noun, Outcome, ValueMissing, Verb, verbs_of
from .console import tell
from .database import database_options
from .parameters import TASK_ID, Read

if TYPE_CHECKING:
    from ..store import Store

C = TypeVar("C", bound=Callable[..., Any])

_TARGETS = {
    Noun.TASK: click.argument("target", metavar="TASK_ID", type=TASK_ID),
    Noun.BATCH: click.argument("target", metavar="BATCH_ID", type=click.UUID),
    Noun.QUEUE: click.argument("target", metavar="NAME"),
    Noun.SCHEDULE: click.argument("target", metavar="NAME"),
}


def say(_store: Store, outcome: Outcome) -> None:
    """Print the sentence of an outcome, or its answer alone."""
    tell(outcome.answer or outcome.sentence, outcome.record)


def add_verbs(group: click.Group, noun: Noun, show: Callable[[Store, Outcome], None] = say) -> None:
    """Add a command for each verb of this kind of thing for which the group has none; `show` prints an outcome."""
    for verb in verbs_of(noun):
        if verb.name not in group.commands and not verb.words[2:]:
            group.add_command(_command_of(verb, show))


def with_fields(*fields: Field) -> Callable[[C], C]:
    """Add the options of these fields to a command, which gets the values by the names of the fields."""

    def add(command: C) -> C:
        for field in reversed(fields):
            command = _parameter_of(field)(command)
        return command

    return add


def _command_of(verb: Verb, show: Callable[[Store, Outcome], None]) -> click.Command:
    def act(store: Store, target: Any, **values: Any) -> None:
        try:
            outcome = verb.do(store, store.find(target) if verb.noun is Noun.TASK else target, **values)
        except ValueMissing as error:
            raise click.UsageError(str(error)) from None
        show(store, outcome)

    command = _TARGETS[verb.noun](with_fields(*verb.fields)(database_options(act)))
    return click.command(verb.name, help=verb.help)(command)


def _parameter_of(field: Field) -> Callable[[C], C]:
    read = field.read
    if read is None:
        return click.option(field.option, field.name, is_flag=True, help=field.help)
    if field.choices:
        return click.argument(
            field.name, type=click.Choice(field.choices), callback=lambda _context, _parameter, value: read(value)
        )
    kind = Read("text", read)
    if field.is_required:
        return click.argument(field.name, type=kind, metavar=field.option)
    return click.option(
        field.option, field.name, type=kind, default=field.default, metavar=field.metavar, help=field.help
    )
