"""The list of all commands. Each is imported when it is used: importing all of them takes half a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from .groups import LateGroup, Place

_PRUNE = Place(module=".history", name="cleanup_events", sentence="Delete finished tasks and their events by age.")

COMMANDS: Final[Mapping[str, Place]] = {
    "demo": Place(
        module=".demo",
        name="demo",
        sentence="Run a small shop, kill a worker, check that nothing is lost.",
    ),
    "upgrade": Place(
        module=".upgrade",
        name="upgrade",
        sentence="Create or upgrade outboxq's tables and subscriptions.",
    ),
    "worker": Place(
        module=".worker",
        name="worker",
        sentence="Run the tasks of APP until SIGTERM, SIGINT or SIGHUP.",
    ),
    "status": Place(
        module=".status",
        name="status",
        sentence="Show counts, rates and durations of each queue.",
    ),
    "task": Place(module=".tasks", name="task", sentence="Inspect tasks, or change one."),
    "failed": Place(
        module=".failed",
        name="failed",
        sentence="List, redrive or discard dead letters.",
    ),
    "queue": Place(module=".queues", name="queue", sentence="Pause or limit a queue, or set the order of its keys."),
    "partition": Place(
        module=".history",
        name="partition",
        sentence="Partition the task history by time (PostgreSQL).",
    ),
    "cleanup-events": _PRUNE,
    "prune": _PRUNE,
    "grants": Place(module=".grants", name="grants", sentence="Print the GRANTs that a PostgreSQL role needs."),
    "verify": Place(module=".verify", name="verify", sentence="Check that outboxq's tables are consistent."),
}


@click.group(cls=LateGroup, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="outboxq")
def main() -> None:
    """Run and inspect tasks of a transactional outbox in your own database."""
