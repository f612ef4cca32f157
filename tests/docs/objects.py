"""Write docs/objects.md from the code: python -m tests.docs.objects"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import outboxq
from outboxq import BoundTask, Chain, ChainHandle, Handle, OpenBatch, Outbox, RetryPolicy, Store, Task, Worker
from outboxq.context import TaskBatch
from outboxq.store import FOR_APPLICATIONS
from outboxq.task.schedules import OutboxSchedules
from outboxq.testing import Harness
from outboxq.testing.clock import Clock
from outboxq.worker.options import WorkerOptions, WorkerSettings
from tests.docs import reference
from tests.docs.reference import default_words, markdown, parameters, truth, type_words

PAGE = Path(__file__).parents[2] / "docs" / "objects.md"
NOUNS = {
    name: one.func for name, one in vars(Store).items() if isinstance(one, cached_property) and name in FOR_APPLICATIONS
}
"""The attributes of a Store that have methods of their own, with their classes."""
OF_WORKERS = {
    "batches": {"create", "close", "forbid_commit", "members", "completed", "continue_cancelling", "prune"},
    "metrics": {"record", "sum_up"},
    "samples": {"look", "count", "record", "thin_out"},
    "schedules": {"declare", "plant"},
    "steps": {"of_claim", "complete", "is_written"},
    "workers": {"register", "seen", "describe", "unregister"},
}
"""The methods of these classes that only workers call."""


TASK = ("name", "function", "options", "retry_policy", "transactional", "timeout_action", "outbox", "subscriptions")
"""The attributes of a Task that its `__init__` sets."""


INSIDE = {"outbox", "target", "takes_tasks"}
"""The attributes of a batch that `using()` reads."""


def page() -> str:
    return dedent(HEAD).lstrip() + "\n" + "\n".join(parts())


def parts() -> Iterator[str]:
    yield options(
        "Outbox",
        "`Outbox(…)` takes these options. In Django and Flask, the settings take their place.",
        Outbox.__init__,
    )
    yield table("`outbox`", "outbox", Outbox, own(Outbox))
    yield table("`outbox.schedules`", "outbox.schedules", OutboxSchedules, own(OutboxSchedules))
    yield table("Tasks", "task", Task, [*TASK, *own(Task)], "`@outbox.task` makes a Task of a function.")
    yield table("`task.using(…)`", "task.using(…)", BoundTask, own(BoundTask))
    yield table("Handles", "handle", Handle, ["id", "created", "replaced", "result"], "`enqueue()` returns a Handle.")
    yield table(
        "Batches",
        "batch",
        OpenBatch,
        ["id", "then_id", "result"],
        "`with outbox.batch(…) as batch` yields an OpenBatch.",
    )
    yield table(
        "`ctx.batch`",
        "ctx.batch",
        TaskBatch,
        [name for name in own(TaskBatch) if name not in INSIDE],
        "A task in a batch or a chain finds it there.",
    )
    yield table("Chains", "chain", Chain, ["using", "enqueue"], "`outbox.chain(…)` returns a Chain.")
    yield table("", "handle", ChainHandle, ["id", "task_ids", "result"], "`chain.enqueue()` returns a ChainHandle.")
    yield policy()
    yield worker()
    yield store()
    yield table(
        "Harness",
        "harness",
        Harness,
        ["app", "clock", "max_runs", *own(Harness)],
        "[Testing](testing.md) has examples.",
    )
    yield table("", "harness.clock", Clock, ["advance", "set", "reset"])
    yield types()


def own(kind: type) -> list[str]:
    """The public names of a class and its bases, in the order of their sources, without those that completion leaves out."""
    names = [name for one in reversed(kind.__mro__) if one.__module__.startswith("outboxq") for name in vars(one)]
    return [
        name for name in dict.fromkeys(names) if not name.startswith("_") and name not in getattr(kind, "_inner", ())
    ]


def table(title: str, prefix: str, kind: type, names: Iterable[str], introduction: str = "") -> str:
    lines = [
        *([f"## {title}", ""] if title else []),
        *([introduction, ""] if introduction else []),
        "| | |",
        "|---|---|",
    ]
    lines += [row(prefix, kind, name) for name in names]
    return "\n".join(lines) + "\n"


def row(prefix: str, kind: type, name: str) -> str:
    one = inspect.getattr_static(kind, name, None)
    if isinstance(one, property | cached_property):
        return f"| `{prefix}.{name}` | {sentence(one, f'{kind.__name__}.{name}')} |"
    one = getattr(kind, name) if isinstance(one, classmethod) else one
    if callable(one):
        return f"| `{prefix}.{name}({parameters(one)})` | {sentence(one, f'{kind.__name__}.{name}')} |"
    return f"| `{prefix}.{name}` | {below(kind, name)} |"


def sentence(one: object, name: str) -> str:
    """The first sentence of a docstring."""
    said = inspect.getdoc(one)
    assert said, f"{name} has no docstring"
    first = re.split(r"(?<=[.:])\s+(?=[A-Z`\"(])", markdown(truth(said)))[0]
    return first.rstrip(":.") + "."


def below(kind: type, name: str) -> str:
    """The text that stands below an attribute in its class, or in that of a base."""
    for one in (base for base in kind.__mro__ if base.__module__.startswith("outboxq")):
        (definition,) = ast.parse(dedent(inspect.getsource(one))).body
        assert isinstance(definition, ast.ClassDef)
        inits = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        for body in (definition.body, *(node.body for node in inits)):
            for node, text in pairwise(body):
                target = ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else ""
                if (
                    target.removeprefix("self.") == name
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    return markdown(str(text.value.value))
    raise AssertionError(f"{kind.__name__}.{name} has no text below it")


def options(title: str, introduction: str, function: Callable[..., object]) -> str:
    return reference.options(function, title, introduction)


def policy() -> str:
    lines = ["## RetryPolicy", "", markdown(inspect.getdoc(RetryPolicy) or ""), "", "| | |", "|---|---|"]
    lines += [row("RetryPolicy", RetryPolicy, name) for name in ("of", "never")]
    return "\n".join(lines).replace("RetryPolicy.of(value)", "RetryPolicy.of(retrying)") + "\n"


def worker() -> str:
    introduction = "`outbox.worker(…)` takes these options. [The worker](worker.md) has those of the command."
    lines = ["## Workers", "", introduction, "", "| option | takes | default | |", "|---|---|---|---|"]
    for one in fields(WorkerSettings):
        if one.name != "on_failpoint":
            takes, default = (
                type_words(WorkerOptions.__annotations__[one.name].__forward_arg__),
                default_words(one.default),
            )
            lines.append(f"| `{one.name}` | {takes} | {default} | {below(WorkerSettings, one.name)} |")
    return "\n".join(lines) + "\n\n" + table("", "worker", Worker, ["run", "start", "stop", "request_stop"])


def store() -> str:
    introduction = (
        "`outbox.store` is the layer below: each method is one transaction, or runs in that of `using=`. Its other attributes are for "
        "workers and front ends, and may change in any release. A task id is a UUID or its text."
    )
    lines = [
        table(
            "Store",
            "store",
            Store,
            [name for name in vars(Store) if name in FOR_APPLICATIONS - NOUNS.keys()],
            introduction,
        )
    ]
    for noun, kind in NOUNS.items():
        lines.append(
            table("", f"store.{noun}", kind, [name for name in own(kind) if name not in OF_WORKERS.get(noun, ())])
        )
    return "\n".join(lines)


def types() -> str:
    """What is imported from `outboxq`, except for exceptions, which have a table of their own."""
    lines = [
        "## Names in outboxq",
        "",
        "Records are frozen. Exceptions are in [the reference](reference.md#exceptions).",
        "",
        "| name | |",
        "|---|---|",
    ]
    for name in sorted(outboxq.__all__):
        one: Any = getattr(outboxq, name)
        if not (inspect.isclass(one) and issubclass(one, outboxq.OutboxqError)):
            lines.append(f"| `{name}` | {sentence(one, name)} |")
    return "\n".join(lines) + "\n"


HEAD = """
    # Objects

    The attributes and methods of the objects that an application works with, in a sentence each. `python -m tests.docs.objects` writes
    this page from the code. `help(Outbox.batch)` prints the rest.
"""

if __name__ == "__main__":
    PAGE.write_text(page())
