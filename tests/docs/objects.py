"""Write the generated parts of docs/reference/*.md from the code: python -m tests.docs.objects"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import timedelta
from enum import Enum, EnumType
from functools import cached_property
from pathlib import Path
from textwrap import dedent, indent
from types import NoneType
from typing import Any

import outboxq
from outboxq import brokers, testing
from outboxq.integration import Integration
from outboxq.model.batches import BatchFailure, BatchResult
from outboxq.model.transports import Confirmed, Message, Refused, Unsure
from outboxq.task.batches import Chain, RunningBatch
from outboxq.task.receivers import Inbox
from outboxq.task.schedules import OutboxSchedules
from outboxq.task.task import BoundTask
from outboxq.worker.options import WorkerSettings
from tests.docs.reference import NOT_OF_HANDLERS, arguments, attributes, markdown, truth
from tests.docs.tables import put_between

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PART = "objects"
"""The part of each page that this module writes."""
WIDTH = 100
"""The maximum length of a signature on one line."""

BY_NAME: Mapping[str, Any] = {
    **{name: getattr(outboxq, name) for name in outboxq.__all__},
    **{name: getattr(testing, name) for name in testing.__all__},
    **{kind.__name__: kind for kind in (BatchFailure, BatchResult, BoundTask, Chain, Integration, RunningBatch)},
    **{name: getattr(brokers, name) for name in brokers.__all__},
    **{kind.__name__: kind for kind in (Confirmed, Message, Refused, Unsure)},
    "Outbox.schedules": OutboxSchedules,
    "Outbox.inbox": Inbox,
    "Worker options": WorkerSettings,
}
"""The public objects, and the objects that they return."""

PAGES: Mapping[str, str] = {
    "outbox": "Outbox configure_sqlite Emitted Subscription Integration",
    "task": "Task ContextTask BoundTask TaskCall Handle OnConflict OnDeadLetter TimeoutAction",
    "context": "TaskContext TaskTimeout",
    "retry": "RetryPolicy Retry Snooze Cancel",
    "worker": "Worker|Worker options|WorkDistributor|PostgresDistributor|SqliteDistributor|create_work_distributor",
    "store": "Store QueueSettings Statistics DeadLetter Attempt Explanation Reason Slow LiveWorker TailCursor Violation",
    "batches": "OpenBatch RunningBatch BatchResult BatchFailure Batch BatchCounts BatchStatus OnFailed Chain ChainHandle",
    "schedules": "Outbox.schedules Schedule CatchUp Overlap",
    "messages": "Outbox.inbox|Webhook|OnRefused|Relay|CloudEvent|WebhookSource|verify_webhook",
    "transports": "RabbitMQ RedisStreams NatsJetStream Kafka Sqs Sns Transport Confirmed Refused Unsure Message",
    "hooks": "Hook Sending WorkerInfo Outcome",
    "records": "TaskExecution TaskStatus ExecutionEvent EventType TaskState",
    "harness": "Harness Enqueued TaskRun Clock OutboxTests EndlessDrain OutcomeDiscarded TransactionEnded",
}
"""The objects of each page, in order. Exceptions are in docs/reference.md."""

SUPPORTED: Mapping[str, str] = {
    "Store": (
        "enqueue enqueue_many emit claim_ready_task complete fail release heartbeat recover schedule_retry reschedule cancel "
        "cancel_all run_all_now redrive discard recover_lost end_session run_now set_priority get find tasks task_page slowest count_tasks count_later history attempts explain progress "
        "stats health overview outlooks change_mark verify prune next_available_at get_ready_for_retry now"
    ),
    "Store.queues": "pause resume limit order settings list held_keys forget",
    "Store.dead_letters": "list oldest groups count redrive_all discard_all",
    "Store.batches": "get list cancel",
    "Store.log": "tail tail_from_now tail_since tail_last state_at",
    "Store.subscriptions": "list replace remove",
    "Store.relays": "list show pause resume remove",
    "Store.steps": "list rewind",
    "Store.workers": "list",
    "Store.schedules": "put get list pause resume trigger backfill remove upcoming ticks",
    "Store.actions": "list get",
    "Store.metrics": "series",
    "Store.samples": "series count",
    "Store.time_partitions": "make drop_before layout",
    "Worker": "run start stop request_stop is_healthy has_stopped health handled running",
    "Clock": "advance set reset",
    "ContextTask": "",
    "TaskCall": "",
}
"""The supported names of classes that have more public names than applications may use."""
INTERNAL: Mapping[str, str] = {
    "Outbox": "hooks making batch_of previous_of task_of wait_for_batch wait_for_result",
    "Handle": "asking",
    "Subscription": "with_key options stored",
    "Schedule": "with_key options stored",
    "Worker options": "of scope check_leases",
    "Task": "returned call_as_json call_signature named_arguments",
    "BoundTask": "planned planned_as",
    "Kafka": "settings",
    "NatsJetStream": "urls",
    "RabbitMQ": "parameters",
    "RedisStreams": "client",
    "Sns": "client send",
    "Sqs": "client send",
    "OpenBatch": "target takes_tasks",
    "RunningBatch": "target takes_tasks",
    "WebhookSource": "check_length verify",
    "TaskContext": " ".join(sorted(NOT_OF_HANDLERS)),
    "RetryPolicy": "of has_stop next_delay",
    "OutboxTests": "setUp",
}
"""Public names that only the library uses."""
CONSTRUCTED = {"Outbox", "Harness", "Retry", "Snooze", "Cancel"}
"""The classes that applications construct, in addition to records."""


@dataclass(frozen=True, kw_only=True)
class Documented:
    """An object on a page: its heading, and the text below."""

    name: str
    text: str
    inside: list[tuple[str, str]] = field(default_factory=list)
    """The headings below it, each with its text."""


def part(page: str) -> str:
    """Return the generated part of a page."""
    lines = []
    for name in names_of(page):
        one = documented(name, BY_NAME[name])
        lines += [f"## {one.name}", "", one.text]
        for heading, text in one.inside:
            lines += [f"### {heading}", "", text]
    return "\n".join(lines)


def names_of(page: str) -> list[str]:
    return PAGES[page].split("|") if "|" in PAGES[page] else PAGES[page].split()


def documented(name: str, found: Any) -> Documented:
    """Describe a function, an enum, a record or a class."""
    if inspect.isfunction(found):
        return Documented(name=name, text=_described(name, found))
    said = _prose(inspect.getdoc(found) or "")
    if isinstance(found, EnumType):
        return Documented(name=name, text=f"{said}\n{_values(found)}")
    if is_dataclass(found) and not name.endswith("Distributor"):
        said += f"\n{_record(found)}"
    elif name in CONSTRUCTED:
        said += f"\n{_described(name, vars(found)['__init__'], is_class=True)}"
    table = _attributes(name, found)
    return Documented(name=name, text=f"{said}\n{table}" if table else said, inside=list(_methods(name, found)))


def _methods(name: str, found: type) -> Iterator[tuple[str, str]]:
    """Yield the heading and the text of each method and property. Those of the class itself come first."""
    seen: set[str] = set()
    for kind in found.__mro__:
        for member, one in vars(kind).items():
            if kind.__module__.startswith("outboxq") and member not in seen and _is_shown(name, member):
                seen.add(member)
                yield from _member(name, member, one)


def _member(name: str, member: str, one: Any) -> Iterator[tuple[str, str]]:
    called = f"{name}.{member}"
    if isinstance(one, cached_property) and called in SUPPORTED:
        for verb in SUPPORTED[called].split():
            yield f"`{called}.{verb}()`", _described(f"{called}.{verb}", vars(one.func)[verb])
    elif isinstance(one, property | cached_property):
        if said := inspect.getdoc(one):
            yield f"`{called}`", _prose(truth(said))
    else:
        function = one.__func__ if isinstance(one, classmethod | staticmethod) else one
        if inspect.isfunction(inspect.unwrap(function)) and function.__doc__:
            yield f"`{called}()`", _described(called, function)


def _is_shown(name: str, member: str) -> bool:
    if name in SUPPORTED and member not in SUPPORTED[name].split() and f"{name}.{member}" not in SUPPORTED:
        return False
    return not member.startswith("_") and member not in INTERNAL.get(name, "").split()


def _described(name: str, function: Callable[..., Any], *, is_class: bool = False) -> str:
    """Return a function's signature, description, parameters and exceptions."""
    text, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    parts = [_called(name, function, is_class=is_class), _prose(text)]
    if rest:
        rows = [f"| `{one}` | {said} |" for one, said in arguments(function).items()]
        parts += ["\n".join(["| parameter | meaning |", "|---|---|", *rows]) + "\n"]
        parts += map(_prose, re.split(r"\n(?=\S)", rest, maxsplit=1)[1:])
    return "\n".join(filter(None, parts))


def _called(name: str, function: Callable[..., Any], *, is_class: bool = False) -> str:
    """Return the signature as a block of Python that is not executed."""
    signature = inspect.signature(function)
    given = list(signature.parameters.values())
    if given and given[0].name in {"self", "cls", "store"}:
        given = given[1:]
    if name == "Outbox.worker":
        given = [one for one in given if one.kind is not one.VAR_KEYWORD]
    words, is_keyword = [], False
    for one in given:
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            words.append("*")
            is_keyword = True
        is_keyword |= one.kind is one.VAR_POSITIONAL
        words.append(_parameter(one))
        following = given[given.index(one) + 1 :]
        if one.kind is one.POSITIONAL_ONLY and not any(other.kind is one.POSITIONAL_ONLY for other in following):
            words.append("/")
    if name == "Outbox.worker":
        words.append("**options")
    returns = (
        ""
        if is_class or signature.return_annotation in {signature.empty, "None", None}
        else _type(signature.return_annotation)
    )
    arrow = f" -> {returns}" if returns else ""
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) > WIDTH:
        line = f"{name}(\n{indent(''.join(f'{word},{chr(10)}' for word in words), '    ')}){arrow}"
    return f"```py\n{line}\n```\n"


def _parameter(one: inspect.Parameter) -> str:
    star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = "" if one.annotation is one.empty else f": {_type(one.annotation)}"
    if one.default is one.empty:
        return f"{star}{one.name}{kind}"
    return f"{star}{one.name}{kind}{' = ' if kind else '='}{_default(one.default)}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__qualname__", str(annotation))
    text = str(annotation) if "|" in str(annotation) else text
    return re.sub(
        r"\b(?:collections\.abc|datetime|builtins|typing|outboxq(?:\.\w+)+)\.",
        "",
        re.sub(r"^Final\[(.+)\]$", r"\1", text),
    )


def _default(default: object) -> str:
    """Return a default value as a reader would write it, or … for an internal object."""
    if isinstance(default, timedelta):
        return f"timedelta(seconds={default.total_seconds():g})"
    if isinstance(default, Enum):
        return f'"{default.value}"'
    if isinstance(default, tuple):
        return f"({', '.join(map(_default, default))}{',' if len(default) == 1 else ''})"
    if type(default) in {str, int, float, bool, NoneType}:
        return repr(default).replace("'", '"')
    return "…"


def _prose(text: str) -> str:
    """Return a docstring as Markdown, with each paragraph on one line. Code blocks stay as they are, and are not executed."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if re.search(r"^(    |\* |- )", paragraph, re.MULTILINE):
            found.append(paragraph.replace("``", "`"))
        else:
            found.append(" ".join(paragraph.split()).replace("``", "`"))
    return "\n\n".join(filter(None, found)) + ("\n" if text.strip() else "")


def _values(found: EnumType) -> str:
    said = _texts(found)
    lines = ["| value | meaning |", "|---|---|"]
    lines += [f'| `{found.__name__}.{one.name}` (`"{one.value}"`) | {said.get(one.name, "")} |' for one in found]
    return "\n".join(lines) + "\n"


def _record(found: Any) -> str:
    """Return a table of a record's fields. Those of its base classes come first."""
    said: dict[str, str] = {}
    for kind in reversed(found.__mro__):
        if kind.__module__.startswith("outboxq"):
            said |= _texts(kind)
    rows = [one for one in fields(found) if not one.name.startswith("_")]
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{one.name}` | `{_type(one.type)}` | {_field_default(one)} | {said.get(one.name, '')} |".replace(
            f"`{_type(one.type)}`", f"`{_type(one.type)}`".replace("|", "\\|")
        )
        for one in rows
    ]
    return "\n".join(lines) + "\n"


def _field_default(one: Field[Any]) -> str:
    if one.default is not MISSING:
        return f"`{_default(one.default)}`"
    return "" if one.default_factory is MISSING else "empty"


def _texts(kind: type) -> dict[str, str]:
    """Return the texts below the attributes in the body of a class."""
    (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for node, below in zip(definition.body, [*definition.body[1:], None], strict=True):
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(target, ast.Name) and is_text and isinstance(below.value.value, str):
            found[target.id] = markdown(below.value.value)
    return found


def _attributes(name: str, found: type) -> str:
    """Return a table of the attributes that the `__init__` of a context, a task or a harness sets and describes."""
    if name not in {"Harness", "Task", "TaskContext"}:
        return ""
    rows = [f"| `{one}` | {kind} | {said} |" for one, kind, said in attributes_set(found)]
    lines = ["| attribute | type | meaning |", "|---|---|---|", *rows]
    return re.sub(r"`Final\[(.+?)\]`", r"`\1`", "\n".join(lines)) + "\n"


def attributes_set(found: type) -> list[tuple[str, str, str]]:
    (definition,) = ast.parse(dedent(inspect.getsource(found))).body
    assert isinstance(definition, ast.ClassDef)
    inits = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return [one for init in inits for one in attributes(init)]


def write() -> None:
    for page in PAGES:
        put_between(FOLDER / f"{page}.md", PART, part(page))


if __name__ == "__main__":
    write()
