"""`outboxq queue`: lists, shows and changes queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..operating.verbs import Noun, Outcome
from .acting import add_verbs
from .console import show
from .groups import Group
from .queue_report import HEAD, PER_KEY, cells, list_, per_key, show_

if TYPE_CHECKING:
    from ..store import Store


@click.group(cls=Group)
def queue() -> None:
    """List, show, pause, limit, order or forget queues."""


def _print(_store: Store, outcome: Outcome) -> None:
    settings = outcome.record
    show((*HEAD, PER_KEY), [(*cells(settings), per_key(settings))], records=settings)


for _command in (list_, show_):
    queue.add_command(_command)
add_verbs(queue, Noun.QUEUE, _print)
