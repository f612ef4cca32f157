"""The output of commands: one JSON document with `--json`, and the format of values in it."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from uuid import UUID

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from outboxq.cli.console import as_json, drawn, json_option, merged, show, tell, wants_json, write_json
from outboxq.cli.status import _for_people
from outboxq.store import Statistics
from outboxq.store.numbers.statistics import Percentiles

NOON = datetime(2026, 11, 23, 13, 0, tzinfo=timezone(timedelta(hours=1)))
SEVEN = UUID(int=7)


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    at: datetime = NOON
    lasts: timedelta = timedelta(minutes=1, milliseconds=500)
    colour: Colour = Colour.RED
    id: UUID = SEVEN
    inner: Inner = Inner(name="x")
    many: tuple[Inner, ...] = (Inner(name="y"),)
    share: float = 0.5
    endless: float = float("inf")
    huge: int = 2**70
    nothing: None = None


EXPECTED = {
    "at": "2026-11-23T12:00:00+00:00",
    "lasts": 60.5,
    "colour": "red",
    "id": "00000000-0000-0000-0000-000000000007",
    "inner": {"name": "x"},
    "many": [{"name": "y"}],
    "share": 0.5,
    "endless": None,
    "huge": 2**70,
    "nothing": None,
}


@click.command()
@json_option
@click.option("--sentence", is_flag=True)
def command(*, sentence):
    if sentence:
        tell("two\nlines\x1b", Inner(name="\x1b\u202e\x7f\x9b"))
    else:
        show(("a", "b"), ((n, "\x1b") for n in range(2)), records=[Inner(name=str(n)) for n in range(2)])
    assert wants_json() is click.get_current_context().meta.get("outboxq.json", False)


def printed(*words):
    return CliRunner().invoke(command, words, catch_exceptions=False).stdout


def test_a_record_becomes_an_object_with_its_field_names():
    assert as_json(Record()) == EXPECTED
    assert as_json([Record(), {Colour.RED: {UUID(int=1)}}]) == [EXPECTED, {"red": [str(UUID(int=1))]}]
    assert merged(Record(), {"reason": "due"}, without=["huge"]).keys() == {*EXPECTED, "reason"} - {"huge"}


def test_an_object_that_json_cannot_represent_is_an_error():
    with pytest.raises(TypeError, match="object cannot be represented in JSON"):
        as_json(object())


def test_a_table_is_printed_as_one_json_list():
    assert printed() == "a\tb\n0\t\\x1b\n1\t\\x1b\n"
    assert printed("--json") == '[{"name": "0"}, {"name": "1"}]\n'


def test_a_sentence_is_printed_as_one_json_object_without_control_characters():
    assert printed("--sentence") == "two\nlines\\x1b\n"
    text = printed("--sentence", "--json")
    assert json.loads(text) == {"name": "\x1b\u202e\x7f\x9b"}
    assert text.isascii()
    assert not set("\x1b\x7f") & set(text)


def test_a_json_document_is_indented_on_a_terminal_but_a_json_line_is_not(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_json({"a": 1})
    write_json({"a": 1}, line=True)
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n{"a": 1}\n'


def test_an_aware_time_is_written_in_utc():
    assert as_json(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00+00:00"


def test_numbers_in_a_table_for_people_are_grouped_and_right_aligned():
    rows = [("mail", 12, "10000+", "7"), ("a", None, 1234, "123456"), ("b", 1_500_000, 3, "x")]
    table = drawn(("queue", "due", "waiting", "key"), rows, width=80)
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        "queue        due  waiting  key",
        "mail          12  10,000+  7",
        "a                   1,234  123456",
        "b      1,500,000        3  x",
    ]


PAST = Percentiles(p50=timedelta(milliseconds=117), p95=timedelta(seconds=63), p99=timedelta(minutes=117))
BUSY = Statistics(
    queue="webhooks_to_partners",
    due=4853,
    delayed=10_000,
    delayed_at_least=True,
    oldest_due_age=timedelta(minutes=117),
    paused=True,
    concurrency=3,
    completed=48_530,
    failures=117,
    throughput=0.0333,
    failure_rate=0.015,
    wait=PAST,
    run=PAST,
    by_workers=True,
)
NUMBERS = {"4,853", "10,000+", "2 h", "48,530", "117", "0.0333", "1.5 %", "117 ms", "63 s"}
KEPT = {40: {"4,853", "48,530", "117", "1.5 %", "117 ms", "63 s"}, 80: NUMBERS, 200: NUMBERS}


@pytest.mark.parametrize("width", KEPT)
def test_status_numbers_and_headings_are_not_cut_on_a_terminal(width):
    console = Console(width=width, file=io.StringIO())
    for one in _for_people([BUSY], by_task=False):
        console.print(drawn(one.head, one.rows, width=width, spare=one.spare), crop=False)
    printed = console.file.getvalue()
    assert all(len(line) <= width for line in printed.splitlines()), printed
    lines = [re.split(r" {2,}", line.strip()) for line in printed.splitlines()]
    cells = {cell for line in lines for cell in line}
    assert cells & NUMBERS >= KEPT[width]
    heads = [line for line in lines if line[0] == "queue"]
    assert {word for line in heads for word in line} <= {*WORDS}, printed
    assert not [cell for cell in cells - NUMBERS if re.fullmatch(r"[0-9][0-9,.]*\D{0,4}", cell) and cell != "0"], (
        printed
    )


WORDS = (
    *("queue", "due", "delayed", "retrying", "running", "failed", "oldest", "workers"),
    *("completed", "retried", "cancelled", "per s", "failing"),
    *(f"{name} {p}" for name in ("wait", "run") for p in ("p50", "p95", "p99")),
)


def test_numbers_that_do_not_fit_widen_the_table_but_text_is_wrapped():
    rows = [("shop.tasks.send_receipt", "1.5 s", "0.0333", "12 %", "1,234", "117 ms", "3 min")]
    console = Console(width=30, file=io.StringIO())
    console.print(drawn(("task", "first", "second", "third", "fourth", "fifth", "sixth"), rows, width=30), crop=False)
    first, second, *_ = console.file.getvalue().splitlines()
    assert first.split() == ["task", "first", "second", "third", "fourth", "fifth", "sixth"]
    assert second.split()[1:] == ["1.5", "s", "0.0333", "12", "%", "1,234", "117", "ms", "3", "min"]


def lines_at(width, head, rows, **options):
    console = Console(width=width, file=io.StringIO())
    console.print(drawn(head, rows, width=width, **options), crop=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_words_are_not_split_while_a_text_can_be_narrowed():
    error = "ConnectionError: the server of the bank did not answer within a minute, and the receipt was not sent"
    rows = [("shop.confirm_every_order", "Completed", error), ("shop.bill", "Failed", None)]
    assert lines_at(70, ("task", "state", "error"), rows) == [
        "task                      state      error",
        "shop.confirm_every_order  Completed  ConnectionError: the server of",
        "                                     the bank did not answer within a",
        "                                     minute, and the receipt was not",
        "                                     sent",
        "shop.bill                 Failed",
    ]


def test_a_table_that_does_not_fit_leaves_out_its_empty_columns():
    head = ("schedule", "when", "paused since", "paused because")
    rows = [("nightly", "0 3 * * * (Europe/Berlin)", None, "")]
    assert lines_at(70, head, rows)[0].split() == ["schedule", "when", "paused", "since", "paused", "because"]
    assert lines_at(40, head, rows) == ["schedule  when", "nightly   0 3 * * * (Europe/Berlin)"]


def test_the_longest_word_is_split_first_if_no_text_can_be_narrowed():
    rows = [("https://bank.example.com/api/receipts", "confirm", "Completed")]
    assert lines_at(32, ("url", "task", "state"), rows) == [
        "url           task     state",
        "https://bank  confirm  Completed",
        ".example.com",
        "/api/receipt",
        "s",
    ]


@pytest.mark.parametrize("cell", ["x", "", "日本"])
def test_a_table_with_one_column_fits_its_text(cell):
    assert lines_at(20, ("a",), [(cell,)]) == ["a", cell]
