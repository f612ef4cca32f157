"""Every command. Imports that cost time (alembic, rich) are made inside the commands that need them."""

from __future__ import annotations

import sys
from datetime import timedelta
from uuid import UUID

import click

from ..model import TaskStatus
from ..store import Store
from .console import EMBEDDED, database_options, span, speaking_plainly, table
from .worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="outboxq")
def main() -> None:
    """A transactional outbox and task queue in your own database."""


@main.command()
@click.option("--url", envvar="OUTBOXQ_DATABASE_URL", help="A database to use instead of a fresh SQLite file.")
@click.option(
    "--orders", default=120, show_default=True, type=click.IntRange(20, 5000), help="How many orders to place."
)
@click.option("--workers", default=3, show_default=True, type=click.IntRange(2, 8), help="How many worker processes.")
def demo(url: str | None, orders: int, workers: int) -> None:
    """Run a small shop for a few seconds, kill a worker, and check that nothing was lost."""
    from .demo import run

    with speaking_plainly():
        sys.exit(run(url, orders=orders, workers=workers))


@main.command()
@click.argument("url", required=False, envvar="OUTBOXQ_DATABASE_URL")
@click.option(
    "--schema", envvar="OUTBOXQ_SCHEMA", help="The PostgreSQL schema of outboxq's tables; created if missing."
)
@click.option("--revision", default="head", show_default=True, help="Where to stop.")
@click.option("--sql", is_flag=True, help="Print the SQL and change nothing.")
def upgrade(url: str | None, schema: str | None, revision: str, *, sql: bool) -> None:
    """Create or upgrade the tables of the database URL."""
    from .. import migrations

    with speaking_plainly():
        database = url or EMBEDDED
        if sql:
            click.echo(migrations.sql(database, revision, schema=schema))
            return
        migrations.upgrade(database, revision, schema=schema)
        click.echo(f"the schema is now {migrations.current(database, schema=schema)}", err=True)


main.add_command(worker)


@main.command()
@database_options
def status(store: Store) -> None:
    """Count each queue's tasks by where they stand."""
    head = ("queue", "ready", "delayed", "running", "completed", "failed", "cancelled", "oldest ready")
    rows = [
        (q.queue, q.ready, q.delayed, q.running, q.completed, q.failed, q.cancelled, q.oldest_ready_at)
        for q in store.stats()
    ]
    table(head, rows)


@main.group()
def task() -> None:
    """Look at one task, or change it."""


@task.command()
@click.argument("task_id", type=click.UUID)
@click.option("--show-args", is_flag=True, help="Print its arguments and result too.")
@database_options
def show(store: Store, task_id: UUID, *, show_args: bool) -> None:
    """Print a task and its history."""
    found = store.get(task_id)
    lines = [("task", found.task_name), ("queue", found.queue), ("status", found.status), ("attempt", found.attempt)]
    lines += [("created", found.created_at), ("retry at", found.retry_at), ("last error", found.last_error)]
    if show_args:
        lines += [("arguments", found.args), ("result", found.result)]
    table(("", str(found.id)), [line for line in lines if line[1] is not None])
    click.echo()
    events = store.history(task_id)
    table(
        ("time", "event", "worker", "token", "error"),
        [(e.created_at, e.event_type, e.worker_id, e.lease_token, e.event_data.get("error")) for e in events],
    )


@task.command()
@click.argument("task_id", type=click.UUID)
@click.option("--reason", default="", help="Kept in the task's history.")
@click.option("--force", is_flag=True, help="Do not wait for the handler of a running task: fence its worker.")
@database_options
def cancel(store: Store, task_id: UUID, reason: str, *, force: bool) -> None:
    """Cancel a task; a running one is asked to stop."""
    status = store.cancel(task_id, reason=reason, force=force)
    click.echo("asked to stop" if status is TaskStatus.RUNNING else str(status))


@task.command()
@click.argument("task_id", type=click.UUID)
@database_options
def retry(store: Store, task_id: UUID) -> None:
    """Run a dead letter again, from its first attempt."""
    store.redrive(task_id)
    click.echo(str(TaskStatus.READY))


@main.command("cleanup-events")
@click.option("--older-than", required=True, callback=span, help="For example 90d or 7d12h.")
@click.option("--failed", is_flag=True, help="Also dead letters, which are otherwise kept until they are dealt with.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@database_options
def cleanup_events(store: Store, older_than: timedelta, *, failed: bool, dry_run: bool) -> None:
    """Delete tasks that ended longer ago than this, together with their events."""
    statuses = {TaskStatus.COMPLETED, TaskStatus.CANCELLED} | ({TaskStatus.FAILED} if failed else set())
    deleted = store.prune(older_than, statuses=statuses, dry_run=dry_run)
    click.echo(f"{deleted} tasks {'would be' if dry_run else 'were'} deleted with their events")


main.add_command(cleanup_events, "prune")


@main.command()
@click.option("--repair", is_flag=True, help="Put right what can be put right without guessing.")
@database_options
def verify(store: Store, *, repair: bool) -> None:
    """Check that tasks, outbox, leases and events tell one story. Exit code 1 if they do not."""
    broken = store.verify(repair=repair)
    for violation in broken:
        examples = ", ".join(str(example) for example in violation.examples)
        repaired = f"; repaired {violation.repaired}" if repair else ""
        click.echo(f"{violation.count} × {violation.name}: {violation.meaning} ({examples}){repaired}")
    if not broken:
        click.echo("every invariant holds", err=True)
    sys.exit(1 if broken else 0)
