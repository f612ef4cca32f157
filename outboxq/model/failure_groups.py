"""Groups of failures that are alike: of one task, with one exception and the same message but for ids, numbers and quoted texts."""

from __future__ import annotations

import re
from hashlib import sha256

HEAD = 400
"""The number of characters of an error that its group goes by."""
_LONGEST = 200
"""The number of characters of a group's message."""
_VARYING = re.compile(
    r"""
    (?=['"0-9a-fA-F])(?:  # what can begin so is looked at: three times as fast
    (?<!\w)(?:'[^'\n]*'|"[^"\n]*")(?!\w)  # quoted texts
    | \b(?:
        [0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}  # uuids
        | 0[xX][0-9a-fA-F]+ | (?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}  # hexadecimal numbers
    )\b
    | [0-9]+(?:[.,:][0-9]+)*  # numbers, dates and times
    )""",
    re.VERBOSE,
)
_CUT_WORD = re.compile(r"[\w'\"-]*$")


def message_of(head: str | None) -> str:
    """Return the message of a group from the beginning of an error, at most `HEAD` characters: what varies becomes an ellipsis."""
    text = head or ""
    first, newline, _ = text.partition("\n")
    if len(text) >= HEAD and not newline:
        first = _CUT_WORD.sub("", first)  # the last word may be a part of an id
    message = _VARYING.sub("…", first.strip())
    return message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"


def group_of(task_name: str, exception: str | None, message: str) -> str:
    """Return the id of a group: 16 hexadecimal digits, the same in every process and release."""
    return sha256("\0".join((task_name, exception or "", message)).encode("utf-8", "replace")).hexdigest()[:16]
