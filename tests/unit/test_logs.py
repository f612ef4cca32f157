"""The log as text and as JSON, and the status line at the bottom of a terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import contextmanager, redirect_stderr
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from outboxq.cli.serving import logs
from outboxq.cli.serving.logs import JsonFormatter, LiveHandler, LogFormat, TextFormatter, configure, show_live_line
from tests import forked
from tests.waiting import until

CLEAR = "\r\x1b[2K"


class Terminal(io.StringIO):
    """The process's output, whose width is unknown."""

    def fileno(self):
        raise OSError("not a terminal")


@contextmanager
def process():
    """Yield the root logger and stderr of a process that has not set up logging. (pytest's own handlers are removed.)"""
    root, stderr = logging.getLogger(), Terminal()
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        with redirect_stderr(stderr):
            yield root, stderr
    finally:
        root.handlers = handlers
        root.setLevel(level)


def test_a_json_record_is_one_object_on_one_line_for_any_message():
    with process() as (_root, stderr):
        configure("INFO", LogFormat.JSON)
        log = logging.getLogger("tests.json")
        try:
            raise ValueError("two\nlines")
        except ValueError:
            log.exception(
                "said %s", "a\nb\x1b\u2028\udc80", extra={"task": "mail", "attempt": 2, "odd": {(1,): 1, "a": {2}}}
            )
        (line,) = stderr.getvalue().splitlines()
        said = json.loads(line)
        assert {name: said[name] for name in ("level", "logger", "message", "task", "attempt")} == {
            "level": "ERROR",
            "logger": "tests.json",
            "message": "said a\nb\x1b\u2028\udc80",
            "task": "mail",
            "attempt": 2,
        }
        assert (said["exception"]["type"], said["exception"]["message"]) == ("builtins.ValueError", "two\nlines")
        assert said["exception"]["traceback"].startswith("Traceback")
        assert said["exception"]["traceback"].endswith("ValueError: two\nlines")
        assert datetime.fromisoformat(said["timestamp"]).utcoffset() == timedelta(0)
        assert set(said) == {"timestamp", "level", "logger", "message", "exception", "task", "attempt", "odd"}


def test_a_json_record_has_no_fields_of_another_handler():
    record = logging.makeLogRecord({"msg": "x", "extra": 1})
    logging.Formatter("%(asctime)s %(message)s").format(record)
    assert set(json.loads(JsonFormatter().format(record))) == {"timestamp", "level", "logger", "message", "extra"}


def test_extra_fields_do_not_replace_standard_fields():
    with process() as (_root, stderr):
        configure("INFO", LogFormat.JSON)
        logging.getLogger("tests").info(
            "x", extra={"level": "mine", "logger": "mine", "timestamp": object(), "when": 1}
        )
        said = json.loads(stderr.getvalue())
        assert (said["level"], said["logger"], said["when"]) == ("INFO", "tests", 1)
        assert said["timestamp"] < "3"


def test_a_text_line_has_the_time_level_logger_and_message():
    with process() as (_root, stderr):
        configure("WARNING", LogFormat.TEXT)
        logging.getLogger("tests").info("unheard")
        logging.getLogger("tests").warning("heard %d", 1)
        assert stderr.getvalue().endswith(" WARNING tests heard 1\n")
        assert stderr.getvalue().count("\n") == 1


def test_existing_logging_of_an_application_is_not_changed():
    with process() as (root, _stderr):
        mine = logging.NullHandler()
        root.addHandler(mine)
        root.setLevel(logging.ERROR)
        configure("DEBUG", LogFormat.JSON)
        assert root.handlers == [mine]
        assert root.level == logging.ERROR


OTHERS = """
import os, sys

from outboxq.cli.serving.starting import open_closed_streams

if sys.argv[1:] == ["taken"]:
    other = os.open("other", os.O_CREAT | os.O_RDWR)
    assert other == 2
open_closed_streams()
print("for the log", file=sys.stderr, flush=True)
print(os.path.samestat(os.fstat(2), os.stat("other" if sys.argv[1:] else os.devnull)))
"""


@pytest.mark.parametrize("taken", [False, True])
def test_the_number_of_a_closed_stderr_is_reserved_unless_it_is_in_use(tmp_path, taken):
    """A framework loads the application first, and the application's first connection may get the number 2. No log may be written to it."""
    command = ["sh", "-c", 'exec "$0" "$@" 2>&-', sys.executable, "-c", OTHERS, *(["taken"] if taken else [])]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = forked.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "True\n"
    assert not taken or (tmp_path / "other").read_text() == ""


# -- the line ---------------------------------------------------------------------------------------------------------


class Busy:
    """A worker that has handled ten more tasks each time it is asked."""

    running = 3
    asked = 0

    @property
    def handled(self):
        self.asked += 1
        return 10 * self.asked


def test_a_record_is_written_above_the_status_line():
    with process() as (root, stderr):
        handler = LiveHandler()
        configure("INFO", LogFormat.TEXT, handler)
        handler.show("3 running")
        root.info("a record")
        handler.show("")
        root.info("the last")
        first, second, rest = stderr.getvalue().split("\n")
    assert first.startswith(f"{CLEAR}3 running{CLEAR}")
    assert first.endswith("INFO root a record")
    assert second.startswith(f"3 running{CLEAR}{CLEAR}")
    assert second.endswith("INFO root the last")
    assert rest == ""


def test_the_status_line_fits_the_terminal():
    with process() as (_root, stderr):
        LiveHandler().show("x" * 500)
        assert stderr.getvalue() == CLEAR + "x" * 79


def test_the_status_line_shows_the_workers_rate_and_is_cleared_when_it_stops(monkeypatch):
    with process() as (_root, stderr):
        monkeypatch.setattr(logs, "EVERY", 0.01)
        handler, worker = LiveHandler(), Busy()
        configure("INFO", LogFormat.TEXT, handler)
        with show_live_line(worker, handler):
            until(lambda: worker.asked > 3)
        first, *_, last = stderr.getvalue().split(CLEAR)[1:]
        rate, rest = first.split(" tasks/s")
        assert 0 < int(rate) <= 1000
        assert rest == " · 20 handled · 3 running"
        assert last == ""
        assert "outboxq-live" not in {thread.name for thread in threading.enumerate()}


def test_no_status_line_is_shown_if_the_application_sets_up_logging(monkeypatch):
    with process() as (root, stderr):
        monkeypatch.setattr(logs, "EVERY", 0.01)
        root.addHandler(logging.NullHandler())
        handler, worker = LiveHandler(), Busy()
        configure("INFO", LogFormat.TEXT, handler)
        with show_live_line(worker, handler):
            assert worker.asked == 0
        assert stderr.getvalue() == ""


def test_closing_the_terminal_does_not_stop_the_worker(monkeypatch):
    with process() as (_root, stderr):
        handler = LiveHandler()
        configure("INFO", LogFormat.TEXT, handler)
        with show_live_line(Busy(), handler):
            monkeypatch.setattr(stderr, "write", closed)


def closed(_text):
    raise OSError(5, "Input/output error")


def test_invisible_characters_of_a_message_are_escaped_in_text():
    record = logging.makeLogRecord({"msg": "task %s ended\nand more", "args": ("\u202egnp.exe\x1b[2J\x07",)})
    assert TextFormatter().format(record).endswith("task \\u202egnp.exe\\x1b[2J\\x07 ended\nand more")
