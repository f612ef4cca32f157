"""Fields of log records: records about a task have the task's fields, and an application's own records get them inside a handler."""

from __future__ import annotations

import ast
import io
import json
import logging
import logging.config
from pathlib import Path

import pytest

from outboxq.cli.serving.logs import LogFormat, configure
from outboxq.context import LOG_FIELDS, TaskContextFilter, current
from outboxq.model.records import ENDS_CLAIM, OUTCOMES, fields_of
from tests import sources
from tests.unit.test_end_log import CLAIM, SECRET
from tests.unit.test_logs import process

PACKAGE = Path(__file__).parents[2] / "outboxq"
OF_A_CLAIM = {
    "task_id": str(CLAIM.id),
    "task": "shop.work",
    "queue": "mail",
    "attempt": 1,
    "worker": str(CLAIM.worker_id),
    "pipeline_id": str(CLAIM.pipeline_execution_id),
}


def without_fields(tree: ast.Module) -> list[str]:
    """Return the log calls that mention one task but do not pass its fields."""
    missing: list[str] = []
    for node in sources.of_kind(tree, ast.Call):
        called = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
        says = called == "say" or called.removeprefix("self._").startswith(("log.", "_log."))
        if not says or called.endswith(("getLogger", "isEnabledFor")):
            continue
        arguments = " ".join(ast.unparse(one) for one in node.args)
        names = {one.id for given in node.args for one in ast.walk(given) if isinstance(one, ast.Name)}
        names |= {one.attr for given in node.args for one in ast.walk(given) if isinstance(one, ast.Attribute)}
        of_a_task = names & {"claim", "task_id", "task_name", "lost"} or "task %" in arguments
        if of_a_task and not {one.arg for one in node.keywords} & {"extra", "fields"}:
            missing.append(f"{node.lineno}: {ast.unparse(node)}")
    return missing


def test_every_log_call_about_a_task_passes_its_fields():
    found = {str(path): without_fields(sources.tree(path)) for path in sorted(PACKAGE.rglob("*.py"))}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_log_call_without_the_fields_is_detected():
    assert without_fields(ast.parse("log.warning('%s is late', one.claim)"))
    assert without_fields(ast.parse("log.error('task %s is failed', x)"))
    assert without_fields(ast.parse("say(log, logging.ERROR, f'{claim}: lost', error)"))
    assert without_fields(ast.parse("log.warning('%s is late', one.claim, extra=fields_of(one.claim))")) == []
    assert without_fields(ast.parse("log.info('%d tasks', len(claims))")) == []


def test_the_fields_of_a_claim_do_not_contain_its_arguments():
    assert fields_of(CLAIM) == OF_A_CLAIM
    assert fields_of(CLAIM, outcome="lost") == {**OF_A_CLAIM, "outcome": "lost"}


def test_every_end_of_a_claim_has_an_outcome():
    assert OUTCOMES.keys() == ENDS_CLAIM


# -- an application's own records --------------------------------------------------------------------------------------


class Context:
    """The part of a TaskContext that the filter reads."""

    task_id, task_name, queue, attempt = CLAIM.id, CLAIM.task_name, CLAIM.queue, CLAIM.attempt


@pytest.fixture
def inside():
    """Run the test as if it were inside a handler."""
    token = current.set(Context())
    yield
    current.reset(token)


def filtered(**extra):
    record = logging.makeLogRecord({"name": "shop", "msg": "x", **extra})
    assert TaskContextFilter().filter(record) is True
    return {name: getattr(record, name) for name in LOG_FIELDS}


def test_a_record_inside_a_handler_has_the_fields_of_the_task(inside):
    assert filtered() == {name: OF_A_CLAIM[name] for name in LOG_FIELDS}


def test_a_record_outside_a_handler_has_empty_fields_for_formats():
    assert filtered() == dict.fromkeys(LOG_FIELDS)


def test_existing_fields_of_a_record_are_kept(inside):
    assert filtered(task="mine", queue=None) == {"task_id": str(CLAIM.id), "task": "mine", "queue": None, "attempt": 1}


def test_the_filter_can_be_configured_by_name(inside):
    stream = io.StringIO()
    logger = logging.getLogger("tests.by_name")
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"task": {"()": "outboxq.context.TaskContextFilter"}},
            "formatters": {"own": {"format": "%(task)s %(attempt)s %(message)s"}},
            "handlers": {
                "own": {"class": "logging.StreamHandler", "stream": stream, "filters": ["task"], "formatter": "own"}
            },
            "loggers": {"tests.by_name": {"handlers": ["own"], "propagate": False}},
        }
    )
    try:
        logger.warning("sent")
    finally:
        logger.handlers.clear()
        logger.propagate = True
    assert stream.getvalue() == "shop.work 1 sent\n"


def test_commands_log_the_fields_as_json_and_omit_missing_ones():
    with process() as (root, stderr):
        configure("INFO", LogFormat.JSON)
        root.info("outside")
        token = current.set(Context())
        root.info("inside")
        current.reset(token)
        outside, inside = (json.loads(line) for line in stderr.getvalue().splitlines())
    assert set(outside) == {"timestamp", "level", "logger", "message"}
    assert {name: inside[name] for name in LOG_FIELDS} == {name: OF_A_CLAIM[name] for name in LOG_FIELDS}
    assert SECRET not in stderr.getvalue()
