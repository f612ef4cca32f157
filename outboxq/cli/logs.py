"""How a process of ours logs on stderr: as text, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def configure(level: str, format: LogFormat, handler: logging.Handler | None = None) -> None:
    """Log to `handler`, by default stderr; an application that has set up logging before keeps what it has."""
    handler = handler or logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonFormatter() if format is LogFormat.JSON else text)
    logging.basicConfig(level=level, handlers=[handler])


def open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that was closed (`2>&-`).

    Else the next socket gets that number, and what we print goes to the database. Where that has happened already, because a
    framework loaded the application before us, the number stays whose it is.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        file: int | str = number
        try:
            os.fstat(number)
            if getattr(sys, name) is None:  # closed when Python started, so that somebody else has opened it since
                file = os.devnull
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)  # inherited, as a standard stream is
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(file, mode, encoding="utf-8", closefd=file is os.devnull))  # noqa: SIM115


class JsonFormatter(logging.Formatter):
    """The record's own fields, then those it was given with `extra=`, which never replace them."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        extra = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        return json.dumps({**line, **extra, **line}, default=str, skipkeys=True)


_OF_EVERY_RECORD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
