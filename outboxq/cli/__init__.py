"""The outboxq command line. Each command is imported on first use, because importing all of them takes half a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from .groups import Place, Program

COMMANDS: Final[Mapping[str, Place]] = {
    "demo": Place(".demo:demo", "Run a small shop, kill a worker, and check for lost tasks."),
    "upgrade": Place(".db:upgrade", "Create or upgrade the tables, subscriptions and schedules."),
    "worker": Place(".serving.worker:worker", "Run the tasks of APP until SIGTERM, SIGINT or SIGHUP."),
    "workers": Place(".workers:workers", "List the live workers, show one, or give it an order."),
    "status": Place(".status:status", "Show counts, rates and durations for each queue."),
    "log": Place(".log:log", "Print the events of all tasks, or of one task, in order."),
    "task": Place(".tasks:task", "Inspect tasks, or change one."),
    "failed": Place(".tasks:failed", "List, redrive or discard dead letters."),
    "enqueue": Place(".enqueue:enqueue", "Enqueue a task, and print its id."),
    "emit": Place(".enqueue:emit", "Emit an event to the tasks that subscribe to its topic."),
    "subscription": Place(".enqueue:subscription", "List or remove tasks' subscriptions to topics."),
    "queue": Place(".queues:queue", "List, show, pause, limit, order or forget queues."),
    "batch": Place(".tasks:batch", "List, show or cancel batches and chains."),
    "schedule": Place(".schedules:schedule", "List, add or change schedules."),
    "relay": Place(".relays:relay", "List, show, run, pause, resume or remove relays to brokers."),
    "actions": Place(".actions:actions", "List the changes that people made: who, what, and why."),
    "web": Place(".serving.web:web", "Serve the dashboard until SIGTERM, SIGINT or SIGHUP."),
    "partition": Place(".db:partition", "Partition the task history by time (PostgreSQL)."),
    "prune": Place(".db:prune", "Delete finished tasks and their events by age."),
    "grants": Place(".db:grants", "Print the GRANTs that a PostgreSQL role needs."),
    "verify": Place(".db:verify", "Check that outboxq's tables are consistent."),
    "check": Place(".status:check", "Print what needs attention; exit with code 1 if anything does."),
    "db": Place(".db:db", "Show the revision, the upgrades and the sizes of the tables."),
    "completion": Place(".groups:completion", "Print the completion script for bash, zsh or fish."),
}


@click.group(cls=Program, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="outboxq")
def main() -> None:
    """Run and inspect the tasks of a transactional outbox in your own database."""
