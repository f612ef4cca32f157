"""The question before a command that changes many things, on a real terminal and in a pipe."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.terminal import shown

ROOT = Path(__file__).parents[2]

PROGRAM = """
import time, click
from outboxq.cli.changes import Exactly, changed, confirmation_options, confirmed
from outboxq.cli.console import json_option, tell
from outboxq.cli.changes import progress

@click.command()
@confirmation_options
@json_option
@click.option("--count", default=3000)
@click.option("--more", is_flag=True)
@click.option("--work", default="")
def main(yes, dry_run, count, more, work):
    def counted():
        click.echo("counted", err=True)
        return Exactly(number=count, at_least=more)

    what = "letters of 'm\\x1b[31mail'"
    if not confirmed(counted, what, yes=yes, dry_run=dry_run, done="discarded", first=lambda: ["a\\x1b", "b"]):
        return
    with progress("discarded", count, stoppable=work in {"batches", "stuck"}) as on_progress:
        for batch in (500, 1000, 1500, 3000) if work else ():
            if on_progress.stop():
                break
            on_progress(batch)
            if batch == 1500:
                click.echo("working", err=True)
                try:
                    time.sleep(60 if work in {"endless", "stuck"} else 0)
                    while work == "batches" and not on_progress._is_asked:
                        time.sleep(0.01)
                finally:
                    click.echo("batch over", err=True)
    number = on_progress.number or count
    tell(f"{number} discarded", changed("discarded", number, Exactly(number=count)))

main()
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, "-W", "error", str(tmp_path / "program.py")]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def on_terminal(command, *words, answers=()):
    return shown([*command, *words], env=ENVIRONMENT, answers=answers)


def in_pipe(command, *words, code=0, given=b"y\n"):
    ended = forked.run([*command, *words], env=ENVIRONMENT, input=given, capture_output=True, check=False)
    assert ended.returncode == code, ended.stderr
    return ended.stdout.decode(), ended.stderr.decode()


QUESTION = "letters of 'm\\x1b[31mail': 3,000 will be discarded\nContinue? [y/N] "


@pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
def test_answering_yes_on_a_terminal_makes_the_change(command, answer):
    code, text = on_terminal(command, answers=[("[y/N] ", answer)])
    assert code == 0
    assert QUESTION in text
    assert "\x1b[31m" not in text
    assert text.endswith("3000 discarded\n")


@pytest.mark.parametrize(
    ("answer", "code"),
    [("\n", 1), ("n\n", 1), ("yess\n", 1), ("\x04", 1), ("\x03", 130)],
    ids=["return", "no", "typo", "end of input", "Ctrl-C"],
)
def test_any_other_answer_changes_nothing(command, answer, code):
    ended, text = on_terminal(command, answers=[("[y/N] ", answer)])
    assert ended == code
    assert text.endswith("outboxq: nothing was changed\n")
    assert "3000 discarded" not in text


def test_without_a_terminal_the_command_is_refused_and_names_both_options(command):
    out, err = in_pipe(command, code=2)
    assert out == ""
    assert err.startswith("outboxq: nothing was changed: without a terminal")
    assert "--yes" in err
    assert "--dry-run" in err
    assert in_pipe(command, "--json", code=2)[0] == ""


def test_the_yes_option_skips_the_question_and_the_count(command):
    assert in_pipe(command, "--yes") == ("3000 discarded\n", "")
    code, text = on_terminal(command, "--yes")
    assert (code, "[y/N]" in text, "counted" in text) == (0, False, False)


def test_a_dry_run_prints_the_count_and_the_first_few(command):
    assert (
        in_pipe(command, "--dry-run")[0] == "letters of 'm\\x1b[31mail': 3,000 would be discarded\n  a\\x1b\n  b\n  …\n"
    )
    assert "at least 3,000 would be" in in_pipe(command, "--dry-run", "--yes", "--more")[0]
    assert json.loads(in_pipe(command, "--dry-run", "--json")[0]) == {
        "action": "discarded",
        "changed": 0,
        "matched": 3000,
        "at_least": False,
        "dry_run": True,
        "first": ["a\x1b", "b"],
    }


def test_no_question_is_asked_if_nothing_matches(command):
    code, text = on_terminal(command, "--count", "0")
    assert (code, "[y/N]" in text) == (0, False)


def test_a_progress_bar_is_shown_only_on_a_terminal(command):
    _, text = on_terminal(command, "--yes", "--work", "quick")
    assert "3000/3000" in text
    assert in_pipe(command, "--yes", "--work", "quick") == ("3000 discarded\n", "working\nbatch over\n")


def test_ctrl_c_prints_the_number_of_changes_made(command):
    code, text = on_terminal(command, "--yes", "--work", "endless", answers=[("working", "\x03")])
    assert code == 130
    assert "outboxq: stopped: 1,500 of 3,000 discarded; these changes are committed\n" in text


def test_ctrl_c_lets_the_current_batch_finish(command):
    code, text = on_terminal(command, "--yes", "--work", "batches", answers=[("working", "\x03")])
    assert code == 130
    assert "Ctrl-C again stops immediately" in text
    assert "outboxq: stopped: 1,500 of 3,000 discarded; these changes are committed\n" in text
    assert "3000 discarded" not in text


def test_a_second_ctrl_c_does_not_wait_for_the_current_batch(command):
    answers = [("working", "\x03"), ("Ctrl-C again stops immediately", "\x03")]
    code, text = on_terminal(command, "--yes", "--work", "stuck", answers=answers)
    assert code == 130
    assert "outboxq: stopped: 1,500 of 3,000 discarded; these changes are committed\n" in text
