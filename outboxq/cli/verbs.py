"""The commands generated from verbs, and the records of the changes that other commands make."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..model.actions import CommandAction, Interface, NewAction, Operator
from ..model.wording import plain
from ..operating.fields import Field
from ..operating.verb import Noun, Outcome, Target, ValueMissing, Verb
from ..operating.verbs import verbs_of
from .console import tell
from .database import database_options
from .parameters import QUEUE, SCHEDULE, TASK_ID, Add, Read, flag, option, stacked

if TYPE_CHECKING:
    from ..database.target import Target as Transaction
    from ..store import Store

T = TypeVar("T")
_TARGETS = {
    Noun.TASK: click.argument("target", metavar="TASK_ID", type=TASK_ID),
    Noun.BATCH: click.argument("target", metavar="BATCH_ID", type=click.UUID),
    Noun.QUEUE: click.argument("target", metavar="NAME", type=QUEUE),
    Noun.SCHEDULE: click.argument("target", metavar="NAME", type=SCHEDULE),
    Noun.RELAY: click.argument("target", metavar="NAME"),
    Noun.WORKER: click.argument("target", metavar="WORKER"),
    Noun.SESSION: click.argument("target", metavar="SESSION"),
}


OPERATOR: Final = "OUTBOXQ_OPERATOR"


def present_operator() -> Operator:
    """Return the person at the command line: the name in OUTBOXQ_OPERATOR or, failing that, the login name."""
    name = os.environ.get(OPERATOR, "").strip()
    if not name:
        with suppress(KeyError, OSError):  # a container may run as a user id without a name
            name = getpass.getuser()
    return Operator(interface=Interface.COMMAND_LINE, name=name)


def recorded(
    store: Store,
    action: CommandAction,
    target: str | None,
    change: Callable[..., T],
    *,
    number: Callable[[T], int],
    **more: Any,
) -> T:
    """Make a change that is not one of the verbs, and record it under this action in the same transaction, which is
    passed to `change` as `using`. `more` contains further fields of the record.
    """
    new = NewAction(operator=present_operator(), action=action, target=target, **more)
    return store.actions.record(new, lambda transaction: change(using=transaction), number=number)


def adding(store: Store, action: CommandAction, **more: Any) -> Callable[[Transaction, int], None]:
    """Return an `on_change` function for a bulk change that is not one of the verbs. The function records the action in
    each transaction of the bulk change.
    """
    return store.actions.adding(NewAction(operator=present_operator(), action=action, **more))


def say(_store: Store, outcome: Outcome) -> None:
    """Print the outcome's answer if it has one, otherwise its sentence."""
    tell(outcome.answer or outcome.sentence, outcome.record)


def carry_out(
    store: Store, verb: Verb, target: Target, show: Callable[[Store, Outcome], None] = say, **values: Any
) -> None:
    """Carry out the verb for the person at the command line, and print the outcome with `show`."""
    try:
        outcome = verb.do(store, target, operator=present_operator(), **values)
    except ValueMissing as error:
        raise click.UsageError(str(error)) from None
    show(store, outcome)


def note_no_change(outcome: Outcome) -> None:
    """If nothing was changed, say so on stderr. Call this function if the outcome's record is printed instead of its
    sentence.
    """
    if not outcome.changes:
        click.echo(plain(f"nothing was changed: {outcome.sentence}"), err=True)


def add_verbs(group: click.Group, noun: Noun, show: Callable[[Store, Outcome], None] = say) -> None:
    """Add the noun's verbs to the group as commands, except those that it already has. `show` prints the outcome."""
    for verb in verbs_of(noun):
        if verb.name not in group.commands and not verb.words[2:]:
            group.add_command(_command_of(verb, show))


def with_fields(*fields: Field) -> Add[Any]:
    """Return a decorator that adds these fields' options to a command. Each value is passed under its field's name."""
    return stacked(*map(_parameter_of, fields))


def _command_of(verb: Verb, show: Callable[[Store, Outcome], None]) -> click.Command:
    def act(store: Store, target: Any, **values: Any) -> None:
        find = {Noun.TASK: store.find, Noun.WORKER: store.worker_orders.find}.get(verb.noun)
        carry_out(store, verb, target if find is None else find(target), show, **values)

    command = _TARGETS[verb.noun](with_fields(*verb.fields)(database_options(act)))
    return click.command(verb.name, help=verb.help)(command)


def _parameter_of(field: Field) -> Add[Any]:
    read = field.read
    if read is None:
        return flag(field.option, field.name, help=field.help)
    if field.choices:
        return click.argument(
            field.name, type=click.Choice(field.choices), callback=lambda _context, _parameter, value: read(value)
        )
    kind = Read("text", read)
    if field.is_required:
        return click.argument(field.name, type=kind, metavar=field.option)
    return option(field.option, field.name, type=kind, default=field.default, metavar=field.metavar, help=field.help)
