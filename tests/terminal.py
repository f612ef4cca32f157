"""A real terminal for a command, whose output there differs from its output to a pipe."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence

from tests import forked

Answer = tuple[str, str | Callable[[subprocess.Popen[bytes]], object]]
"""A text to wait for, and then the characters to type (``\\x03`` is Ctrl-C), or a function to call with the process."""


def shown(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    columns: int = 120,
    answers: Sequence[Answer] = (),
    starts_others: bool = False,
) -> tuple[int, str]:
    """Return the command's exit code and all its output to a terminal of this width. Give the answers in this order."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    modes = termios.tcgetattr(slave)
    modes[3] |= termios.NOFLSH  # otherwise, Ctrl-C discards what the command has just written
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    size = {"COLUMNS": str(columns), "LINES": "40"}  # both, or rich assumes 80 columns for a dumb terminal
    environment = {"TERM": "xterm-256color", **env, **size}
    with forked.Popen(
        command,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=forked.own_terminal,
        starts_others=starts_others,
    ) as running:
        os.close(slave)
        try:
            text = _drained(master, running, [*answers])
            return running.wait(60), text.replace("\r\n", "\n")
        finally:
            running.kill()
            os.close(master)


def _drained(master: int, running: subprocess.Popen[bytes], answers: list[Answer]) -> str:
    """Read until no process has the terminal open."""
    read, seen = bytearray(), 0
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # Linux's error at the end
                raise
            piece = b""
        if not piece:
            assert not answers, f"the command did not show {answers[0][0]!r}: {read.decode(errors='replace')}"
            return read.decode(errors="replace")
        read += piece
        while answers and (place := read.find(answers[0][0].encode(), seen)) >= 0:
            seen = place + len(answers[0][0].encode())
            _, typed = answers.pop(0)
            if callable(typed):
                typed(running)
            else:
                os.write(master, typed.encode())
