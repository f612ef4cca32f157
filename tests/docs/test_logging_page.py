"""The page about logging lists the code's loggers, fields and options."""

from __future__ import annotations

import importlib
import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from outboxq import Outbox, RetryPolicy
from outboxq.cli import main
from outboxq.cli.serving.logs import JsonFormatter, LogFormat, configure

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "logging.md").read_text()
[EXAMPLE] = [json.loads(found) for found in re.findall(r"^```json\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)]


@pytest.fixture
def printed(database):
    """Return the JSON record of a task that fails permanently, as this database's worker prints it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    outbox = Outbox(database.url)

    @outbox.task(name=EXAMPLE["task"], queue=EXAMPLE["queue"], retry=RetryPolicy.never())
    def charge(order_id: int) -> None:
        raise ValueError(f"order {order_id} was declined")

    logger = logging.getLogger("outboxq.worker")
    logger.addHandler(handler)
    try:
        charge.using(outbox).enqueue(7)
        outbox.worker().run(burst=True)
    finally:
        logger.removeHandler(handler)
        outbox.store.bound_engine.dispose()
    [record] = [json.loads(line) for line in stream.getvalue().splitlines() if '"task_failed"' in line]
    return record


def test_a_record_has_the_fields_that_the_page_shows(printed):
    assert set(printed) == set(EXAMPLE)
    same = ("level", "logger", "exception", "task", "queue", "attempt", "event")
    assert {name: printed[name] for name in same} == {name: EXAMPLE[name] for name in same}
    shown, _, _ = EXAMPLE["message"].partition("see: ")
    message, _, _ = printed["message"].partition("see: ")
    assert _without_numbers(message) == _without_numbers(shown)


def _without_numbers(message: str) -> str:
    return re.sub(r"[0-9a-f]{8}-\S+|\d+\.\d+", "…", message)


def test_the_page_lists_every_used_logger():
    speaking = set()
    for path in (ROOT / "outboxq").rglob("*.py"):
        source = path.read_text()
        if re.search(r"\blog\.(?!getLogger)\w+\(|\((?:self\._)?log[,)]", source):
            speaking |= set(re.findall(r'getLogger\("(outboxq\.\w+)"\)', source))
    assert set(re.findall(r"^\| `(outboxq\.\w+)` \|", TEXT, re.MULTILINE)) == speaking


def test_the_options_on_the_page_are_options_of_the_worker():
    known = {name for one in main.commands["worker"].params for name in (*one.opts, *one.secondary_opts)}
    named = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert named <= known | {"--traceback"}
    assert {name for name in known if "log" in name} <= named


def test_the_limits_match_the_code():
    from outboxq.worker import executor, log_lines

    assert f"at most {log_lines._LONGEST} characters" in TEXT
    assert f"up to {executor._ERROR_BYTES:,} bytes" in TEXT
    assert f"up to {executor._TRACEBACK_BYTES // 1024} kB" in TEXT


CONFIG = "logging.config.dictConfig({'version': 1, 'handlers': {'own': {'class': 'logging.NullHandler'}}, 'root': {'handlers': ['own']}, %s})"


@pytest.mark.parametrize(
    ("set_up", "its_own", "silent"),
    [
        (CONFIG % "'disable_existing_loggers': False", True, False),
        (CONFIG % "", True, True),
        ("logging.basicConfig(handlers=[logging.NullHandler()], force=True)", True, False),
        ("logging.basicConfig(handlers=[logging.NullHandler()])", False, False),
    ],
    ids=["dictConfig", "dictConfig that disables", "basicConfig with force", "basicConfig"],
)
def test_a_module_that_configures_logging_has_the_described_effect(set_up, its_own, silent, tmp_path, monkeypatch):
    """The command configures logging before it imports the module."""
    root, known = logging.getLogger(), list(logging.Logger.manager.loggerDict.values())
    loggers = [one for one in known if isinstance(one, logging.Logger)]
    before, level, disabled = root.handlers[:], root.level, [one.disabled for one in loggers]
    (tmp_path / "its_own_logging.py").write_text(f"import logging, logging.config\n{set_up}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "its_own_logging", raising=False)
    try:
        root.handlers[:] = []
        configure("INFO", LogFormat.TEXT, ours := logging.StreamHandler(io.StringIO()))
        importlib.import_module("its_own_logging")
        [handler] = root.handlers
        assert (handler is not ours) is its_own
        assert logging.getLogger("outboxq.worker").disabled is silent
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        for one, was in zip(loggers, disabled, strict=True):
            one.disabled = was
        sys.modules.pop("its_own_logging", None)
