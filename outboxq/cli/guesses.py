"""Hints for words typed where APP belongs, and for unknown commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

from ..model.guesses import Guess, replacement

_CLOSE, _VERY_CLOSE = 0.6, 0.8
_DESTRUCTIVE: Final = frozenset({"cancel", "discard", "forget", "partition", "prune", "remove", "stop"})
"""Commands that delete, end or change something permanently. Each command is suggested only for a word that differs
from its name by about one character.
"""

_QUEUE: Final = ("a queue", "-q {word}")
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "enqueue": ("an argument of the task", """--args '{{"NAME": {json}}}'"""),
    "emit": ("the payload", "--payload {quoted}"),
    "relay run": ("the name of a relay", "--name {word}"),
    "queue limit": ("the limit", "{limit}"),
    "queue pause": ("the reason", "--reason {word}"),
    "relay pause": ("the reason", "--reason {word}"),
    "subscription list": ("a topic", "--topic {word}"),
    "prune": ("the age", "--older-than {word}"),
    **dict.fromkeys(("check", "workers list", "task list", "failed list", "failed summary"), _QUEUE),
}
"""The probable meaning of a word typed where APP belongs, and the option that accepts the word, keyed by command."""
_NUMBER: Final = re.compile(r"[0-9]+")


def option_for(word: str, *, command: str) -> tuple[str, str] | None:
    """Return the probable meaning of a word that was typed where a command's APP belongs, and the option to write."""
    if command not in _WORDS or (":" in word and command not in {"enqueue", "emit"}):  # the word is meant to be APP
        return None
    meaning, option = _WORDS[command]
    try:
        as_json = json.dumps(json.loads(word))
    except ValueError:
        as_json = json.dumps(word)
    limit = "--concurrency {word}" if _NUMBER.fullmatch(word) else "--rate {word}"
    words = {"word": shlex.quote(word), "json": as_json.replace("'", "\\u0027"), "quoted": shlex.quote(as_json)}
    return meaning, option.format(limit=limit.format(**words), **words)


def no_command(name: str, *, group: str, known: Collection[str]) -> tuple[str, str]:
    """Return the sentence about an unknown command in a group, and a cure that may contain the placeholder PROGRAM. The
    cure is "" if the name is not in the table; the sentence then asks about the most similar commands.
    """
    if cure := replacement(Guess.COMMAND, group, name):
        return f"No such command {name!r}", cure
    likely = [
        one
        for one in get_close_matches(name, known, n=3, cutoff=_CLOSE)
        if one not in _DESTRUCTIVE or get_close_matches(name, [one], cutoff=_VERY_CLOSE)
    ]
    question = f" Did you mean {' or '.join(map(repr, likely))}?" if likely else ""
    return f"No such command {name!r}.{question}", ""
