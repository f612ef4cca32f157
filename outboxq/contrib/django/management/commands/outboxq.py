"""`manage.py outboxq …`: the commands of `outboxq` on one of DATABASES."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, ClassVar

import click
from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS
from django.utils.module_loading import autodiscover_modules

from .....cli import framework, main
from .....cli.framework import Frame, FramedGroup
from ...django_outbox import outboxes
from . import ending_as_django_does

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
            help="One of DATABASES. It may also be given after COMMAND. Default: %(default)s.",
        )
        parser.add_argument(
            "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="One of the commands below; each has a --help."
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        words = options["words"]
        if not words:
            self.print_help("manage.py", "outboxq")
            return
        autodiscover_modules("tasks")  # a queue that only a task names is known
        with ending_as_django_does(options.get("stdout"), from_command_line=self._called_from_command_line):
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
        """Return the command `outboxq_worker` under the name `worker`. Unlike the other commands, it runs Django's
        system checks.
        """
        from .outboxq_worker import Command as Worker
        from .outboxq_worker import work

        def run(*, database: str, skip_checks: bool, **given: Any) -> None:
            if not skip_checks:
                self.check()
            work(database, from_command_line=self._called_from_command_line, **given)

        skip = click.Option(["--skip-checks"], is_flag=True, help="Skip Django's system checks.")
        return framework.worker_command(run, skip, *options, help=Worker.help)


def _options(alias: str) -> list[click.Option]:
    """Return the options that every command has. The hidden ones have no effect, because Django has already parsed
    them.
    """
    hidden: Mapping[str, Any] = {"hidden": True, "expose_value": False}
    return [
        click.Option(["--database"], default=alias, show_default=True, metavar="ALIAS", help="One of DATABASES."),
        click.Option(["--settings"], **hidden),
        click.Option(["--pythonpath"], **hidden),
    ]


def _commands(group: FramedGroup) -> str:
    context = click.Context(group, info_name=PROGRAM)
    formatter = click.HelpFormatter(width=100)
    group.format_commands(context, formatter)
    return formatter.getvalue()
