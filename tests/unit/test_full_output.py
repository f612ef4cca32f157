"""Output that cannot be written, for example to a full disk: the command prints a message and returns an exit code, without a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outboxq.cli.console import speaking_plainly

FULL = "/dev/full"
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
SENTENCE = (
    "outboxq: the output cannot be written: No space left on device; free some space, or write the output elsewhere; changes "
    "that were made are kept\n"
)
EXIT_UNWRITTEN = 74


def ended(*words: str, both: bool = False) -> tuple[int, str]:
    """Return the exit code and stderr of a command whose stdout is on a full disk. With `both`, stderr is on it too."""
    command = [sys.executable, "-m", "outboxq", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXQ")}
    with Path(FULL).open("wb") as full:
        stderr = full if both else subprocess.PIPE
        done = subprocess.run(command, stdout=full, stderr=stderr, env=environment, check=False)
    return done.returncode, "" if both else done.stderr.decode()


@pytest.mark.parametrize("words", [("schedule", "next", "0 3 * * *"), ("--help",)], ids=" ".join)
def test_a_command_on_a_full_disk_prints_a_message(words):
    code, said = ended(*words)
    assert code == EXIT_UNWRITTEN
    assert said.endswith(SENTENCE)
    assert "Traceback" not in said


def test_a_full_disk_under_both_streams_still_sets_the_exit_code():
    assert ended("schedule", "next", "0 3 * * *", both=True) == (EXIT_UNWRITTEN, "")


def test_a_full_disk_in_a_frameworks_command_line_prints_the_same_message(capsys):
    with pytest.raises(SystemExit) as stop, speaking_plainly():
        raise NO_SPACE
    assert stop.value.code == EXIT_UNWRITTEN
    assert capsys.readouterr().err == SENTENCE


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device", "report.csv"), OSError(errno.ENOENT, "No such file")],
    ids=["a file of the application", "another error"],
)
def test_other_file_errors_are_raised_unchanged(error):
    with pytest.raises(OSError, match="No s"), speaking_plainly():
        raise error
