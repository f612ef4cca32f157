"""The `outboxq` commands as Django commands. They take the same options, both from `manage.py` and from `call_command`."""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any, ClassVar, TextIO

import click
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from .....cli.changes import ATTENDED
from .....cli.database import run_on_store
from .....cli.groups import DATABASE_PARAMETERS
from ...django_outbox import outboxes


class ClickCommand(BaseCommand):
    """A command that parses its options with argparse, as Django does, and passes them on to click as strings."""

    source: ClassVar[click.Command]

    @abstractmethod
    def run(self, alias: str, **given: Any) -> None:
        """Run the command with the options that click has parsed."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--database", default=DEFAULT_DB_ALIAS, metavar="ALIAS", help="One of DATABASES. Default: %(default)s."
        )
        for option in self._options():
            _add(parser, option)

    def handle(self, *_args: Any, **options: Any) -> None:
        alias, out = options["database"], options.get("stdout")
        words = [word for option in self._options() for word in _written(option, options[option.name])]

        def run(**given: Any) -> None:
            click.get_current_context().meta[ATTENDED] = self._called_from_command_line
            self.run(alias, **given)

        command = click.Command(self.source.name, params=[*self._options()], callback=run)
        with ending_as_django_does(out, from_command_line=self._called_from_command_line):
            command.main(words, prog_name=str(self.source.name), standalone_mode=False)

    def _options(self) -> list[click.Option]:
        return [
            one for one in self.source.params if isinstance(one, click.Option) and one.name not in DATABASE_PARAMETERS
        ]


class StoredCommand(ClickCommand):
    """A command that reads or changes the tables on its own connections."""

    requires_system_checks: ClassVar[list[str]] = []

    def run(self, alias: str, **given: Any) -> None:
        run_on_store(self.source, lambda: outboxes[alias].store, **given)


@contextmanager
def ending_as_django_does(out: TextIO | None, *, from_command_line: bool) -> Iterator[None]:
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


def _add(parser: argparse.ArgumentParser, option: click.Option) -> None:
    help_text = argparse.SUPPRESS if option.hidden else (option.help or "").replace("%", "%%")
    shared: dict[str, Any] = {"dest": option.name, "default": None, "help": help_text}
    if option.is_flag:
        parser.add_argument(*option.opts, action="store_true", **shared)
        if option.secondary_opts:
            parser.add_argument(*option.secondary_opts, action="store_false", **shared)
        return
    if option.multiple:
        shared["action"] = "append"
    elif option._flag_needs_value:  # noqa: SLF001 - `--watch` with or without its seconds; a test pins it
        shared |= {"nargs": "?", "const": str(option.flag_value)}
    parser.add_argument(*option.opts, metavar=(option.metavar or str(option.name).upper()).strip("[]"), **shared)


def _written(option: click.Option, value: Any) -> list[str]:
    """Return the option in the form of command-line words for click; an empty list if it was not given."""
    longest = max(option.opts, key=len)
    if value is None:
        return []
    if option.is_flag:
        return [longest] if value else option.secondary_opts[:1]
    values = value if option.multiple and not isinstance(value, str) else [value]
    return [f"{longest}={one}" for one in values]
