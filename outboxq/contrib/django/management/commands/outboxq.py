"""`manage.py outboxq …`: the commands of `outboxq` on one of the databases in `DATABASES`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from typing import Any, ClassVar, TextIO

import click
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.autoreload import get_child_arguments
from django.utils.module_loading import autodiscover_modules

from .....cli import framework, main
from .....cli.framework import Frame, FramedGroup
from .....cli.parameters import Once
from .....cli.serving.worker import serve
from .....outbox import Outbox
from ...django_outbox import outboxes

PROGRAM = "manage.py outboxq"

ELSEWHERE = {
    **framework.ELSEWHERE,
    "upgrade": "run: manage.py migrate",
    "web": "include outboxq.contrib.django.dashboard.dashboard_urls() in your URLs",
}
"""Commands that manage.py omits, each with what to use instead."""


class Command(BaseCommand):
    help = "Inspect and change tasks and queues. Django's other options go before COMMAND."
    requires_system_checks: ClassVar[list[str]] = []

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> Any:
        """Return a parser whose help text ends with a list of the commands."""
        parser = super().create_parser(prog_name, subcommand, usage="%(prog)s [options] COMMAND …", **options)
        own = parser.format_help
        parser.format_help = lambda: f"{own()}\n{_commands(self._group(DEFAULT_DB_ALIAS))}"
        return parser

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            metavar="ALIAS",
            help="Alias in DATABASES. It may also be given after COMMAND. Default: %(default)s.",
        )
        parser.add_argument(
            "words",
            nargs=argparse.REMAINDER,
            metavar="COMMAND",
            help="One of the commands below. Each has a --help option.",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        words = options["words"]
        if not words:
            self.print_help("manage.py", "outboxq")
            return
        autodiscover_modules("tasks")  # so that queues named only by tasks are known
        with _ending_as_django_does(options.get("stdout"), from_command_line=self._called_from_command_line):
            try:
                self._group(options["database"]).main(words, prog_name=PROGRAM, standalone_mode=False)
            except click.UsageError as error:
                if not self._called_from_command_line:
                    raise
                error.show()
                raise SystemExit(error.exit_code) from None

    def _group(self, alias: str) -> FramedGroup:
        options = _options(alias)
        frame = Frame(
            program=lambda: PROGRAM,
            store=lambda database: outboxes[database].store,
            outbox=lambda database: outboxes[database],
            options=options,
            again=lambda database: () if database == DEFAULT_DB_ALIAS else ("--database", database),
            own=lambda: {"worker": self._worker(options)},
            attended=self._called_from_command_line,
            elsewhere=ELSEWHERE,
        )
        return FramedGroup(lambda: main, frame, name="outboxq", context_settings=dict(main.context_settings))

    def _worker(self, options: list[click.Option]) -> click.Command:
        """Return the `worker` command. Unlike the other commands, `worker` runs Django's system checks."""

        def run(*, database: str, skip_checks: bool, **given: Any) -> None:
            if not skip_checks:
                self.check()
            if (given["processes"] > 1 or given["reload"]) and not self._called_from_command_line:
                raise CommandError("--processes and --reload run this command again, so start it from the command line")
            serve(partial(_find, database), _again, **given)

        skip = click.Option(["--skip-checks"], is_flag=True, help="Skip Django's system checks.")
        text = "Run the tasks in the tasks.py files of the installed apps until SIGTERM, SIGINT or SIGHUP."
        return framework.worker_command(run, skip, *options, help=text)


def _find(alias: str) -> Outbox:
    for connection in connections.all(initialized_only=True):  # opened by the checks; handler threads have their own
        if not connection.in_atomic_block:
            connection.close()
    return outboxes[alias]


def _again(lifeline: int) -> list[str]:
    """Return the command line for another process of this worker."""
    return [*get_child_arguments(), "--lifeline", str(lifeline)]


def _options(alias: str) -> list[click.Option]:
    """Return the options that every command has. The hidden options have no effect, because Django has already parsed
    them.
    """
    hidden: Mapping[str, Any] = {"hidden": True, "expose_value": False}
    return [
        Once(["--database"], default=alias, show_default=True, metavar="ALIAS", help="Alias in DATABASES."),
        click.Option(["--settings"], **hidden),
        click.Option(["--pythonpath"], **hidden),
    ]


def _commands(group: FramedGroup) -> str:
    context = click.Context(group, info_name=PROGRAM)
    formatter = click.HelpFormatter(width=100)
    group.format_commands(context, formatter)
    return formatter.getvalue()


@contextmanager
def _ending_as_django_does(out: TextIO | None, *, from_command_line: bool) -> Iterator[None]:
    """Turn click's errors into CommandError. In `call_command`, do the same for an exit code other than 0."""
    try:
        with nullcontext() if out is None else redirect_stdout(out):
            yield
    except click.ClickException as error:
        raise CommandError(error.format_message(), returncode=error.exit_code) from None
    except SystemExit as ended:
        if ended.code and from_command_line:
            raise
        if ended.code:
            text = f"the command ended with exit code {ended.code}; its message is on stderr"
            raise CommandError(text, returncode=ended.code) from None
