"""The list of all commands. Each is imported when it is used: with their SQLAlchemy they take half a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from .groups import LateGroup, Place

COMMANDS: Final[Mapping[str, Place]] = {
    "demo": Place(
        module=".demo",
        name="demo",
        sentence="Run a small shop for a few seconds, kill a worker, and check that nothing was lost.",
    ),
    "upgrade": Place(
        module=".upgrade",
        name="upgrade",
        sentence="Create or upgrade the tables of APP (module:outbox), and make known what its tasks subscribe to.",
    ),
    "worker": Place(
        module=".worker",
        name="worker",
        sentence="Run the tasks of APP, written module:outbox, until SIGTERM, SIGINT or SIGHUP.",
    ),
    "status": Place(
        module=".status",
        name="status",
        sentence="Show what waits, runs and has failed now, and what happened lately: counts, rates, and how long tasks took.",
    ),
    "task": Place(module=".tasks", name="task", sentence="Look at tasks, or change one."),
    "failed": Place(
        module=".failed",
        name="failed",
        sentence="List the tasks that have failed for good; redrive or discard them.",
    ),
    "queue": Place(module=".queues", name="queue", sentence="Pause a queue, limit it, or say how its keys are run."),
    "partition": Place(
        module=".history",
        name="partition",
        sentence="Divide the history by time (PostgreSQL), so that pruning drops old partitions whole.",
    ),
    "cleanup-events": Place(
        module=".history",
        name="cleanup_events",
        sentence="Delete tasks that ended longer ago than this, together with their events.",
    ),
    "prune": Place(
        module=".history",
        name="cleanup_events",
        sentence="Delete tasks that ended longer ago than this, together with their events.",
    ),
    "grants": Place(
        module=".grants", name="grants", sentence="Print the GRANTs that the PostgreSQL role NAME needs, and no more."
    ),
    "verify": Place(
        module=".verify", name="verify", sentence="Check that tasks, outbox, leases, keys and events tell one story."
    ),
}


@click.group(cls=LateGroup, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="outboxq")
def main() -> None:
    """A transactional outbox and task queue in your own database."""
