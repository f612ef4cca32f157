"""Hints for words typed where APP belongs, and for commands and options that outboxq does not have, especially
misspelled ones and those from Celery, RQ and Dramatiq.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

from .groups import PROGRAM

_CLOSE, _VERY_CLOSE = 0.6, 0.8
_DESTRUCTIVE: Final = frozenset({"cancel", "discard", "forget", "partition", "prune", "remove", "stop"})
"""Commands that delete, end or change something permanently. Each command is suggested only for a word that differs
from its name by about one character.
"""
_PURGE = f"{PROGRAM} task cancel -q QUEUE --status ready"
_TICKS = (
    f"it is not needed: every worker enqueues the tasks of schedules; `{PROGRAM} schedule list` lists the schedules"
)
_ROWS_OF_COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "beat cron scheduler rqscheduler rqcron": _TICKS,
        "flower monitor dashboard ui": f"{PROGRAM} web",
        "inspect active reserved scheduled": f"{PROGRAM} workers list, {PROGRAM} task list or {PROGRAM} queue list",
        "control": f"{PROGRAM} workers, {PROGRAM} queue or {PROGRAM} task cancel",
        "ping": f"{PROGRAM} workers list",
        "events": f"{PROGRAM} log --follow",
        "history": f"{PROGRAM} task history ID",
        "purge empty clear flush": _PURGE,
        "revoke cancel abort": f"{PROGRAM} task cancel ID",
        "result show fetch": f"{PROGRAM} task show ID",
        "explain": f"{PROGRAM} task explain ID",
        "call apply delay run-task": f"{PROGRAM} enqueue TASK --args JSON",
        "send publish": f"{PROGRAM} enqueue TASK --args JSON, or {PROGRAM} emit TOPIC",
        "list tasks jobs": f"{PROGRAM} task list",
        "multi worker-pool workerpool": f"{PROGRAM} worker --processes N",
        "run start work serve consume": f"{PROGRAM} worker",
        "info stats report": f"{PROGRAM} status",
        "queues": f"{PROGRAM} queue list",
        "migrate init initdb createdb create-all": f"{PROGRAM} upgrade",
        "requeue retry redrive": f"{PROGRAM} failed redrive ID",
        "dead dlq dead-letters": f"{PROGRAM} failed list",
        "suspend pause": f"{PROGRAM} queue pause QUEUE",
        "resume": f"{PROGRAM} queue resume QUEUE",
        "limit rate-limit rate_limit": f"{PROGRAM} queue limit QUEUE",
        "shutdown": f"{PROGRAM} workers stop ID",
        "periodic schedules crontab": f"{PROGRAM} schedule list",
        "group chord chain": f"{PROGRAM} batch list",
        "amqp broker": f"it is not needed: tasks are in your database; `{PROGRAM} relay list` lists the relays to brokers",
    },
    "task": {
        "revoke abort delete kill terminate stop": f"{PROGRAM} task cancel ID",
        "purge empty clear": _PURGE,
        "result get info status inspect query query_task": f"{PROGRAM} task show ID",
        "retry requeue": f"{PROGRAM} task redrive ID",
        "call send run delay apply enqueue": f"{PROGRAM} enqueue TASK --args JSON",
        "active reserved scheduled registered": f"{PROGRAM} task list",
        "events log": f"{PROGRAM} task history ID",
    },
    "failed": {
        "retry requeue rerun run replay": f"{PROGRAM} failed redrive",
        "delete purge empty clear remove": f"{PROGRAM} failed discard",
        "show get info inspect": f"{PROGRAM} task show ID",
        "groups": f"{PROGRAM} failed summary",
    },
    "schedule": {
        "run run-now fire call": f"{PROGRAM} schedule trigger NAME",
        "create put": f"{PROGRAM} schedule add",
        "update change": f"{PROGRAM} schedule edit NAME",
        "delete": f"{PROGRAM} schedule remove NAME",
        "disable stop suspend": f"{PROGRAM} schedule pause NAME",
        "enable start": f"{PROGRAM} schedule resume NAME",
    },
    "queue": {
        "purge empty clear flush": _PURGE,
        "delete remove": f"{PROGRAM} queue forget NAME",
        "info status get stats": f"{PROGRAM} queue show NAME",
        "rate-limit rate_limit rate": f"{PROGRAM} queue limit NAME --rate 100/1m",
        "suspend stop": f"{PROGRAM} queue pause NAME",
        "start": f"{PROGRAM} queue resume NAME",
    },
    "workers": {
        "ping info status stats inspect": f"{PROGRAM} workers list",
        "active": f"{PROGRAM} workers show ID",
        "shutdown kill terminate": f"{PROGRAM} workers stop ID",
        "pause suspend cancel_consumer": f"{PROGRAM} workers quiet ID",
        "start run": f"{PROGRAM} worker",
    },
    "batch": {
        "revoke abort delete stop": f"{PROGRAM} batch cancel ID",
        "get info status result": f"{PROGRAM} batch show ID",
    },
    "relay": {"start publish": f"{PROGRAM} relay run", "delete forget": f"{PROGRAM} relay remove NAME"},
    "db": {"upgrade migrate init create": f"{PROGRAM} upgrade"},
}
"""Replacements for commands that other programs have, keyed by group; "" is outboxq's top-level group. A key may list
several names.
"""
COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    group: {name: cure for names, cure in rows.items() for name in names.split()}
    for group, rows in _ROWS_OF_COMMANDS.items()
}
"""The replacements in `_ROWS_OF_COMMANDS`, with a separate key for each name."""

_CODE = "in the code: timeout= of @outbox.task"
_QUEUES, _PROCESSES = "-q, once for each queue: -q mail -q crm", "--processes"
_ROWS_OF_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "worker": {
        "-Q --queues": _QUEUES,
        "-X --exclude-queues": _QUEUES,
        "-P --pool -w --worker-class": "--isolation thread or --isolation process",
        "-B --beat -s --schedule --scheduler --with-scheduler -S": _TICKS,
        "-l --loglevel --logging_level --logging-level": "--log-level",
        "-v --verbose": "--log-level debug",
        "-n --hostname --name": "it is not needed: a worker's name consists of its host name and its process id",
        "--autoscale": "-c for the number of threads and --processes for the number of processes, which are both fixed",
        "-t --threads": "-c",
        "-p --workers --num-workers": _PROCESSES,
        "-E --task-events --events": f"it is not needed: every event is stored; `{PROGRAM} log --follow` prints them",
        "-O --optimization --prefetch-multiplier --prefetch-count": "--prefetch",
        "--max-tasks-per-child": "--isolation process --tasks-per-child",
        "--max-jobs": "--max-tasks",
        "--time-limit --soft-time-limit": _CODE,
        "--without-gossip --without-mingle --without-heartbeat": "it is not needed: workers do not communicate with each other",
        "--purge --discard": _PURGE,
        "-f --logfile --log-file": "it is not needed: the log goes to stderr, which you can redirect",
        "-D --detach --pidfile --pid-file": "it is not needed: start the worker from a service manager, such as systemd",
        "-I --include -i --import": "the imports in APP's module, so that the module declares all tasks",
        "-b --broker --url -u": "--database-url, along with APP, which a worker always needs",
        "--watch": "--reload",
        "--worker-shutdown-timeout": "--drain-timeout",
    },
    "upgrade": {
        "--check --status": f"{PROGRAM} db current, which says whether the tables need an upgrade",
        "--dry-run --plan": f"{PROGRAM} db sql, which prints the SQL of the upgrade",
    },
    "task list": {"--state -s": "--status", "--name --task-name": "--task", "--page --offset": "--before or --after"},
    "task cancel": {"--state -s": "--status"},
    "failed list": {"--state --status": f"{PROGRAM} task list --status"},
    "queue list": {"--watch": f"{PROGRAM} status --watch"},
    "enqueue": {
        "-a --kwargs -k --arguments": "--args, with one JSON object",
        "--countdown --schedule-in --in": "--delay",
        "--eta --schedule-at --run-after": "--at",
        "-Q": "-q",
        "--expiry --ttl": "--expires",
        "--retry --max-retries --retry-max": "--max-attempts",
    },
}
"""Replacements for options that other programs or commands have, keyed by command. A key may list several names."""
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    command: {name: cure for names, cure in rows.items() for name in names.split()}
    for command, rows in _ROWS_OF_OPTIONS.items()
}
"""The replacements in `_ROWS_OF_OPTIONS`, with a separate key for each name."""

_QUEUE: Final = ("a queue", "-q {word}")
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "enqueue": ("an argument of the task", """--args '{{"NAME": {json}}}'"""),
    "emit": ("the payload", "--payload {quoted}"),
    "relay run": ("the name of a relay", "--name {word}"),
    "queue limit": ("the limit", "{limit}"),
    "queue pause": ("the reason", "--reason {word}"),
    "relay pause": ("the reason", "--reason {word}"),
    "subscription list": ("a topic", "--topic {word}"),
    "prune": ("the age", "--older-than {word}"),
    **dict.fromkeys(("check", "workers list", "task list", "failed list", "failed summary"), _QUEUE),
}
"""The probable meaning of a word typed where APP belongs, and the option that accepts the word, keyed by command."""
_NUMBER: Final = re.compile(r"[0-9]+")


def option_for(word: str, *, command: str) -> tuple[str, str] | None:
    """Return the probable meaning of a word that was typed where a command's APP belongs, and the option to write."""
    if command not in _WORDS or (":" in word and command not in {"enqueue", "emit"}):  # the word is meant to be APP
        return None
    meaning, option = _WORDS[command]
    try:
        as_json = json.dumps(json.loads(word))
    except ValueError:
        as_json = json.dumps(word)
    limit = "--concurrency {word}" if _NUMBER.fullmatch(word) else "--rate {word}"
    words = {"word": shlex.quote(word), "json": as_json.replace("'", "\\u0027"), "quoted": shlex.quote(as_json)}
    return meaning, option.format(limit=limit.format(**words), **words)


def no_command(name: str, *, group: str, known: Collection[str]) -> tuple[str, str]:
    """Return the sentence about an unknown command in a group, and a cure that may contain the placeholder PROGRAM. The
    cure is "" if the name is not in the table; the sentence then asks about the most similar commands.
    """
    if cure := COMMANDS.get(group, {}).get(name, ""):
        return f"No such command {name!r}", cure
    likely = [
        one
        for one in get_close_matches(name, known, n=3, cutoff=_CLOSE)
        if one not in _DESTRUCTIVE or get_close_matches(name, [one], cutoff=_VERY_CLOSE)
    ]
    question = f" Did you mean {' or '.join(map(repr, likely))}?" if likely else ""
    return f"No such command {name!r}.{question}", ""


def cure_of_option(name: str, *, command: str) -> str:
    """Return the replacement for an option that the command does not have, or "" if there is none. The replacement may
    contain the placeholder PROGRAM.
    """
    return OPTIONS.get(command, {}).get(name, "")
