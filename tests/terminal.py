"""A real terminal for a command: what it shows there differs from what it writes into a pipe."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence


def shown(command: Sequence[str], *, env: Mapping[str, str], columns: int = 120) -> tuple[int, str]:
    """The command's exit code, and all that a terminal of that width was sent."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    size = {"COLUMNS": str(columns), "LINES": "40"}  # both, or rich takes a dumb terminal for one of 80 columns
    environment = {"TERM": "xterm-256color", **env, **size}
    with subprocess.Popen(command, env=environment, stdin=slave, stdout=slave, stderr=slave) as running:
        os.close(slave)
        try:
            text = _drained(master)
            return running.wait(60), text.replace("\r\n", "\n")
        finally:
            running.kill()
            os.close(master)


def _drained(master: int) -> str:
    """Until nobody has the terminal open any more."""
    read = bytearray()
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:  # Linux's word for the end
                raise
            piece = b""
        if not piece:
            return read.decode(errors="replace")
        read += piece
