"""Write docs/reference.md from the code: python -m tests.docs.reference"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import Any

import click

import outboxq
from outboxq import Cancel, Outbox, Retry, Snooze, Task, TaskContext, errors
from outboxq.cli import console, main
from outboxq.cli.groups import EXIT_INTERRUPTED, EXIT_UNWRITTEN
from outboxq.cli.serving.worker import EPILOG
from tests.docs.tables import put_between

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"

NOT_OF_HANDLERS = TaskContext._inner
"""The methods of TaskContext that the worker and the framework integrations use."""
KINDS = {
    "seconds": "seconds",
    "datetime": "`datetime` (aware)",
    "tenacity.BaseRetrying": "tenacity's `Retrying`",
    "Sequence[str]": "several `str`",
    "Callable[[], Session | None]": "a function that returns a `Session`",
}
"""Annotations that are written in other words."""
OF_THE_LIBRARY = "every `Outbox()` that is created without a database"
"""The other readers of OUTBOXQ_DATABASE_URL, in addition to commands."""
THEIR_PLACE = (
    "Database errors pass through as SQLAlchemy raises them. "
    "Import exceptions that are marked with `*` from `outboxq.errors`, and the others from `outboxq`."
)
OF_COMMANDS = {
    0: "the command succeeded, or had nothing to do",
    1: "the change was refused, because you answered no or because the task's status does not allow it. For `verify`: the tables are "
    "inconsistent. For `check`: there are problems",
    console.EXIT_USAGE: "the usage or the configuration is wrong (for example, the URL names a database that outboxq cannot use), or `--yes` is "
    "missing and there is no terminal",
    console.EXIT_NOT_FOUND: "there is no such task, queue, schedule or subscription",
    console.EXIT_SCHEMA: "the database has no outboxq tables, or its tables are from an incompatible release",
    console.EXIT_UNREACHABLE: "the database cannot be reached, its file is damaged, or a statement ran for too long",
    EXIT_UNWRITTEN: "the output could not be written, for example because the disk is full or broken. Changes that the command made are kept",
    console.EXIT_LOCKED: "another session keeps a table, a row or the SQLite file locked; if the session is known, the message names it. Run the "
    "command again later",
    console.EXIT_PERMISSION: "the role lacks a privilege",
    129: "SIGHUP",
    EXIT_INTERRUPTED: "Ctrl-C",
    143: "SIGTERM",
}
"""Exit codes of commands other than the worker, which docs/command-line.md lists too."""
COMMAND_LINE = PAGE.with_name("command-line.md")
CODES_PART = "exit codes"
"""The part of that page with these codes."""


def page() -> str:
    return dedent(HEAD).lstrip() + "\n" + "\n".join(part() for part in PARTS)


def options(function: Callable[..., object], title: str, introduction: str) -> str:
    """Return a table of a function's keywords. The type and the default come from its signature, and the description from its docstring."""
    said = arguments(function)
    lines = [f"## {title}", "", introduction, "", "| option | takes | default | |", "|---|---|---|---|"]
    for name, one in inspect.signature(function).parameters.items():
        if name not in {"self", "function"}:
            lines.append(
                f"| `{name}` | {type_words(one.annotation)} | {default_words(one.default)} | {said.pop(name)} |"
            )
    assert not said, f"{title}: the docstring has options that are not in the signature: {', '.join(said)}"
    return "\n".join(lines) + "\n"


def arguments(function: Callable[..., object]) -> dict[str, str]:
    """Return the text below `Args:` in a docstring, with each argument on one line."""
    _, _, text = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    text = dedent(re.split(r"\n(?=\S)", text)[0])
    found = re.split(r"^(\w+): ", text, flags=re.MULTILINE)[1:]
    return {name: markdown(said) for name, said in zip(found[::2], found[1::2], strict=True)}


def markdown(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def type_words(annotation: str) -> str:
    """Return the kinds of values in words. A number that may replace a timedelta is in seconds."""
    kinds = [kind for kind in re.split(r" \| (?![^[]*\])", annotation) if kind != "None"]
    if "timedelta" in kinds:
        kinds.remove("float")
        kinds.insert(1, "seconds")
    if "object" in kinds:
        return "an owner of a transaction"
    return ", ".join(KINDS.get(kind, f"`{kind}`") for kind in kinds)


def default_words(default: object) -> str:
    if default is None or type(default) is object:
        return ""
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g} s"
    return f"`{default.value if isinstance(default, Enum) else default!r}`".replace("'", '"')


def task_options() -> str:
    introduction = "`@outbox.task(…)` takes these options. They apply to each task that is enqueued, unless [the call](#using) sets another value."
    return options(Outbox.task, "@outbox.task", introduction)


def using_options() -> str:
    introduction = (
        "`task.using(…)`, which is written before `.enqueue(…)` or `.enqueue_many(…)`, takes these options. `outbox.emit(topic, payload, using=…)` also "
        "takes `delay`, `run_after`, `partition_key`, `expires`, `idempotency_key` and `headers`. [Consumers](consumers.md) has examples."
    )
    return options(Task.using, "using()", introduction)


def schedule_options() -> str:
    introduction = (
        "`@outbox.periodic(…)`, which is written above `@outbox.task`, takes these options. `outbox.schedules.put(name, task, …)` takes the same options, "
        "for a schedule that is stored at run time. [Schedules](schedules.md) has examples."
    )
    return options(Outbox.periodic, "@outbox.periodic", introduction)


def context() -> str:
    lines = [
        "## TaskContext",
        "",
        "A handler whose first parameter is annotated with `TaskContext` receives a context: `def send_receipt(ctx: TaskContext, order_id: int)`.",
        "",
        "| | type | |",
        "|---|---|---|",
    ]
    for name, kind, said in members(TaskContext):
        lines.append(f"| `ctx.{name}` | {kind} | {said} |")
    return "\n".join(lines) + "\n"


def members(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield the public attributes and methods of a class, in the order of its source."""
    (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for node in definition.body:
        if not isinstance(node, ast.FunctionDef) or "overload" in map(ast.unparse, node.decorator_list):
            continue
        if node.name == "__init__":
            yield from attributes(node)
        elif not node.name.startswith("_") and node.name not in NOT_OF_HANDLERS:
            said = ast.get_docstring(node)
            assert said, f"{kind.__name__}.{node.name} has no docstring"
            is_method = {"property", "cached_property"}.isdisjoint(map(ast.unparse, node.decorator_list))
            taken = parameters(getattr(kind, node.name)) if is_method else ""
            returns = ast.unparse(node.returns) if node.returns else ""
            name = f"{node.name}({taken})" if is_method else node.name
            yield name, "" if is_method else f"`{returns}`".replace(" | ", "` or `"), markdown(truth(said))


def parameters(function: Callable[..., object]) -> str:
    """Return the parameters of a method as a caller writes them: `name, function, *args, transactional=`."""
    taken = list(inspect.signature(function).parameters.values())
    if taken and taken[0].name in {"self", "store"}:
        taken = taken[1:]
    signs = {
        inspect.Parameter.VAR_POSITIONAL: "*{}",
        inspect.Parameter.VAR_KEYWORD: "**{}",
        inspect.Parameter.KEYWORD_ONLY: "{}=",
    }
    return ", ".join(signs.get(one.kind, "{}").format(one.name) for one in taken)


def truth(said: str) -> str:
    """Return a property's docstring in the form that a table uses."""
    return re.sub(r"^Return whether ", "True if ", said)


def attributes(init: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """Yield the attributes that `__init__` sets and that have a text below them, with that text."""
    annotated = {one.arg: one.annotation for one in (*init.args.args, *init.args.kwonlyargs)}
    for node, below in zip(init.body, [*init.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        has_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        is_public = isinstance(target, ast.Attribute) and not target.attr.startswith("_")
        if has_text and is_public and target.attr not in NOT_OF_HANDLERS:
            kind = node.annotation if isinstance(node, ast.AnnAssign) else annotated[target.attr]
            yield target.attr, f"`{ast.unparse(kind)}`".replace(" | ", "` or `"), markdown(str(below.value.value))


def raised() -> str:
    lines = [
        "## What a handler raises",
        "",
        "`from outboxq import Cancel, Retry, Snooze`. [Retries](retries.md#what-a-handler-can-return-or-raise) compares them.",
        "",
        "| | |",
        "|---|---|",
    ]
    for kind in (Retry, Snooze, Cancel):
        signature = re.sub(r": '([^']+)'", r": \1", str(inspect.signature(kind))).removesuffix(" -> 'None'")
        signature = signature.replace("|", "or").replace("''", '""')
        lines.append(f"| `{kind.__name__}{signature}` | {markdown(inspect.getdoc(kind) or '')} |")
    return "\n".join(lines) + "\n"


def exceptions() -> str:
    lines = [
        "## Exceptions",
        "",
        f"`except outboxq.OutboxqError` catches all of these exceptions. {THEIR_PLACE}",
        "",
        "| exception | is also | raised when |",
        "|---|---|---|",
    ]
    for kind in tree(errors.OutboxqError):
        star = "" if hasattr(outboxq, kind.__name__) else " *"
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not Exception)
        lines.append(f"| `{kind.__name__}`{star} | {bases} | {markdown(inspect.getdoc(kind) or '')} |")
    return "\n".join(lines) + "\n"


def tree(root: type) -> Iterator[type]:
    """Yield a class of `errors` and its subclasses. Each class comes before its own subclasses."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from tree(kind)


def environment() -> str:
    lines = [
        "## Environment variables",
        "",
        "Each variable sets a command option. An option on the command line takes precedence.",
        "",
        "| variable | sets | |",
        "|---|---|---|",
    ]
    found: dict[str, tuple[dict[str, None], str]] = {}
    for command in commands(main):
        for one in command.params:
            if isinstance(one.envvar, str):
                said = getattr(one, "help", None) or ""
                names, known = found.setdefault(one.envvar, ({}, said))
                names[
                    max(one.opts, key=len) if isinstance(one, click.Option) else one.metavar or str(one.name).upper()
                ] = None
                found[one.envvar] = (names, max(known, said, key=len))
    for variable, (names, said) in sorted(found.items()):
        known = ", ".join(f"`{name}`".replace("|", "\\|") for name in names)
        also = f", and read by {OF_THE_LIBRARY}" if variable == "OUTBOXQ_DATABASE_URL" else ""
        lines.append(f"| `{variable}` | {known}{also} | {markdown(said)} |")
    lines.append(
        "| `OUTBOXQ_OPERATOR` | the name that `outboxq actions` shows for your changes | Your name. Default: the login name. |"
    )
    lines.append(
        "| `OUTBOXQ_STATEMENT_TIMEOUT` | the time limit of a statement that reads or upgrades whole tables | The default is 1h; 0s turns the limit off. |"
    )
    lines.append(
        "| `OUTBOXQ_WEB_TOKEN` | the token of `outboxq web` | The token for logging in. `--token-file` takes precedence. |"
    )
    lines += [
        "",
        "`NO_COLOR` switches colors off, and `TERM=dumb` switches off the line that a worker keeps at the bottom of a terminal.",
    ]
    return "\n".join(lines) + "\n"


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield command


def exit_codes() -> str:
    codes = {int(code): said for code, said in re.findall(r"^ +(\d+)  (.+)$", EPILOG, re.MULTILINE)}
    lines = ["## Exit codes", "", "| code | `outboxq worker` | other commands |", "|---:|---|---|"]
    lines += [
        f"| {code} | {codes.get(code, '')} | {OF_COMMANDS.get(code, '')} |" for code in sorted(codes | OF_COMMANDS)
    ]
    return "\n".join(lines) + "\n"


def codes_of_commands() -> str:
    lines = ["| code | means |", "|---|---|", *(f"| {code} | {said} |" for code, said in OF_COMMANDS.items())]
    return "\n".join(lines) + "\n"


HEAD = """
    # Reference

    This page briefly describes each option, attribute, exception, variable and exit code. `python -m tests.docs.reference` generates
    the page from the code. [The guides](README.md) explain how to use them.
"""
PARTS: tuple[Callable[[], Any], ...] = (
    task_options, using_options, schedule_options, context, raised, exceptions, environment, exit_codes,
)  # fmt: skip

if __name__ == "__main__":
    PAGE.write_text(page())
    put_between(COMMAND_LINE, CODES_PART, codes_of_commands())
