"""Write the pages of docs/reference that are lists (names, errors, commands, tables, events, JSON): python -m tests.docs.lists"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

import click
from sqlalchemy import Column
from sqlalchemy.dialects import postgresql, sqlite

import outboxq
from outboxq import errors, testing
from outboxq.cli import main
from outboxq.database import tables
from outboxq.database.tables import tasks
from outboxq.database.typed_table import TypedColumns
from outboxq.model import ENDS_CLAIM, STATUS_AFTER, EventType
from tests.docs import objects
from tests.docs.reference import markdown, tree
from tests.docs.tables import put_between

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
JSON_KEYS = ROOT / "tests" / "golden" / "cli_json.json"

COMMON = {"--app", "--dry-run", "--json", "--schema", "--url", "--yes"}
"""Options that have the same meaning in each command."""
EVENT_DATA: Mapping[EventType, str] = {
    EventType.CREATED: "available_at idempotency_key position unique_until unique_until_finished",
    EventType.CLAIMED: "attempt",
    EventType.COMPLETED: "recovery_attempts",
    EventType.RETRY_SCHEDULED: "attempt available_at error exception recovery_attempts request retry_at traceback",
    EventType.FAILED: "attempt error exception traceback",
    EventType.RESET: "available_at lease_expires_at recovery_attempts",
    EventType.ABANDONED: "error lease_expires_at recovery_attempts",
    EventType.RELEASED: "attempt available_at cause error reason times",
    EventType.SNOOZED: "attempt available_at reason step",
    EventType.CANCELLED: "attempt error lease_expires_at reason recovery_attempts request",
    EventType.CANCEL_REQUESTED: "reason request",
    EventType.EXPIRED: "expires_at",
    EventType.DISCARDED: "attempt reason recovery_attempts request",
    EventType.REPLACED: "attempt available_at recovery_attempts request",
    EventType.REQUEUED: "attempt available_at reason recovery_attempts request",
    EventType.RESCHEDULED: "available_at priority reason request",
    EventType.STEP_COMPLETED: "due_at ms number step",
    EventType.REWOUND: "number reason request step",
    EventType.UNROUTED: "payload topic",
    EventType.SKIPPED: "count first last schedule",
    EventType.BATCH_CREATED: "kind links on_failed",
    EventType.BATCH_COMPLETED: "cancelled completed failed size then",
}
"""The keys that each event's data can have."""


def names() -> str:
    """Return a table of the public names and their pages."""
    pages = {name: page for page in objects.PAGES for name in objects.names_of(page)}
    lines = ["| name | import from | page |", "|---|---|---|"]
    for module, exported in ((outboxq, outboxq.__all__), (testing, testing.__all__)):
        for name in sorted(exported):
            page = "errors" if is_error(getattr(module, name)) and name not in pages else pages[name]
            lines.append(f"| [`{name}`]({page}.md#{name.lower()}) | `{module.__name__}` | {page} |")
    return "\n".join(lines) + "\n"


def is_error(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, errors.OutboxqError)


def exceptions() -> str:
    """Return a section for each exception: its description, and the calls that raise it."""
    lines = []
    for kind in tree(errors.OutboxqError):
        bases = " and ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not Exception)
        where = "outboxq" if hasattr(outboxq, kind.__name__) else "outboxq.errors"
        origin = f"`from {where} import {kind.__name__}`" + (f", a subclass of {bases}." if bases else ".")
        lines += [f"## {kind.__name__}", "", f"{origin} {markdown(inspect.getdoc(kind) or '')}", ""]
        if raising := raisers(kind.__name__):
            lines += [f"Raised by {', '.join(raising)}.", ""]
        lines += [f"[Causes, cures and messages](../troubleshooting/errors.md#{kind.__name__.lower()})", ""]
    return "\n".join(lines)


def raisers(name: str) -> list[str]:
    """Return links to the calls that are documented to raise this exception."""
    found = []
    for page, text in parts().items():
        for section in re.split(r"^(?=###? )", text, flags=re.MULTILINE):
            heading = re.match(r"### `(.+?)(\(\))?`\n", section)
            if heading and re.search(rf"[Rr]aises?\b[^\n]*\b{name}\b|\b{name}\b[^.\n]* is raised", section):
                anchor = re.sub(r"[^\w\- ]", "", heading[1]).lower()
                found.append(f"[`{heading[1]}`]({page}.md#{anchor})")
    return found


@cache
def parts() -> dict[str, str]:
    return {page: objects.part(page) for page in objects.PAGES}


def commands() -> str:
    """Return a section for each command: its usage, help and options. Options that many commands share are listed once, at the beginning."""
    shared = {
        name: (one, click.Context(command))
        for _, command in visible(main, "outboxq")
        for one in command.params
        for name in one.opts
    }
    lines = ["## Common options", "", "| option | default | meaning |", "|---|---|---|"]
    lines += [option_row(*shared[name]) for name in sorted(COMMON)]
    lines.append("")
    for path, command in visible(main, "outboxq"):
        context = click.Context(command, info_name=path)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        lines += [f"## {path}", "", f"```text\n{usage}\n```", "", plain(command.help or ""), ""]
        given = {name: one for one in command.get_params(context) for name in one.opts}
        rows = [option_row(one, context) for one in command.get_params(context) if not COMMON & {*one.opts}]
        if rows := list(filter(None, rows)):
            lines += ["| option | default | meaning |", "|---|---|---|", *rows, ""]
        if common := [f"`{name}`" for name in given if name in COMMON]:
            lines += [f"Also {', '.join(common)}: see [the common options](#common-options).", ""]
    return "\n".join(lines)


def visible(group: click.Group, above: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands that the help lists, with their full names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from visible(command, f"{above} {name}")
        else:
            yield f"{above} {name}", command


def plain(text: str) -> str:
    """Return a help text in paragraphs, without click's markup."""
    text = inspect.cleandoc(text).replace("\f", "")
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("\b"):
            blocks.append("```text\n" + block.removeprefix("\b").strip("\n") + "\n```")
        else:
            blocks.append(escaped(" ".join(block.split())))
    return "\n\n".join(blocks)


def escaped(text: str) -> str:
    """Return the text with its Markdown and HTML markup escaped."""
    return re.sub(r"([<*_\[])", r"\\\1", text).replace("``", "`")


def option_row(one: click.Parameter, context: click.Context) -> str:
    if not isinstance(one, click.Option) or one.hidden or "--help" in one.opts:
        return ""
    value = "" if one.is_flag else f" {one.make_metavar(context)}"
    opts = ", ".join(f"`{name}{value}`" for name in (*one.opts, *one.secondary_opts)).replace("|", "\\|")
    default = one.get_default(context, call=False)
    is_said = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    said = escaped(markdown(one.help or ""))
    return f"| {opts} | {f'`{default}`' if is_said else ''} | {said} |"


def entities() -> str:
    """Return a section for each table: its purpose and its columns."""
    lines = []
    for table in sorted(tasks.metadata.sorted_tables, key=lambda one: one.name):
        kind = declaring(table.name)
        lines += (
            [f"## {table.name}", "", markdown(inspect.cleandoc(kind.__doc__ or "")), ""]
            if kind.__doc__
            else [f"## {table.name}", ""]
        )
        comments = remarks(kind)
        lines += ["| column | PostgreSQL | SQLite | null | meaning |", "|---|---|---|---|---|"]
        lines += [column_row(one, comments.get(one.name, "")) for one in table.columns]
        lines.append("")
    return "\n".join(lines)


def declaring(name: str) -> type[TypedColumns]:
    """Return the class that declares the columns of a table."""
    wanted = name.title().replace("_", "") + "Columns"
    modules = [one for one in vars(tables).values() if isinstance(one, ModuleType)]
    return next(getattr(module, wanted) for module in modules if hasattr(module, wanted))


def remarks(kind: type) -> dict[str, str]:
    """Return the comments beside the columns of a class."""
    return dict(re.findall(r"^    (\w+) = .+?  # (.+)$", inspect.getsource(kind), re.MULTILINE))


def column_row(one: Column[object], comment: str) -> str:
    kinds = [one.type.compile(dialect=dialect).lower() for dialect in (postgresql.dialect(), sqlite.dialect())]
    key = " (key)" if one.primary_key else ""
    text = comment.replace("|", "\\|").replace("<", "\\<")
    return f"| `{one.name}`{key} | `{kinds[0]}` | `{kinds[1]}` | {'yes' if one.nullable else ''} | {text} |"


def events() -> str:
    """Return a table of the events: the status after each event, and the keys of its data."""
    said = objects._texts(EventType)
    lines = ["| event | status after it | ends a claim | keys of `event_data` | meaning |", "|---|---|---|---|---|"]
    for kind in EventType:
        status = STATUS_AFTER.get(kind, "")
        keys = ", ".join(f"`{key}`" for key in EVENT_DATA[kind].split())
        lines.append(
            f"| `{kind}` | {status} | {'yes' if kind in ENDS_CLAIM else ''} | {keys} | {said.get(kind.name, '')} |"
        )
    return "\n".join(lines) + "\n"


def documents() -> str:
    """Return a section for each command with `--json`: the keys of its document."""
    lines = []
    for command, keys in json.loads(JSON_KEYS.read_text()).items():
        lines += [f"## {command}", "", ", ".join(f"`{key}`" for key in keys), ""]
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "README": names,
    "errors": exceptions,
    "commands": commands,
    "tables": entities,
    "events": events,
    "json": documents,
}
"""The pages, with the functions that return their generated parts."""


def write() -> None:
    for page, part in PAGES.items():
        put_between(FOLDER / f"{page}.md", "list", part())


if __name__ == "__main__":
    write()
