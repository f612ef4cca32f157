"""The names of other libraries that newcomers type, each with its replacement in outboxq (`guesses.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files


class Guess(StrEnum):
    """The kinds of names."""

    OPTION = "options"
    """A keyword argument of a function, such as `emit()`."""
    ATTRIBUTE = "attributes"
    """An attribute of an object, such as `a handle`."""
    NAME = "modules"
    """A name in a module."""
    COMMAND = "commands"
    """A command in a group; "" is the top level."""
    COMMAND_OPTION = "command_options"
    """An option of a command. The replacements of commands and of their options may contain a placeholder for the
    program's name.
    """


def replacement(kind: Guess, of: str, name: str) -> str:
    """Return the replacement for a name that a function, object, module, group or command does not have; "" if none is
    known, or if the file cannot be read now.
    """
    try:
        return tables()[kind].get(of, {}).get(name, "")
    except OSError:  # for example, because too many files are open; the caller's own error must not be lost
        return ""


def instead_of(cure: str) -> str:
    """Return the end of a message about an unknown name: "; write …", or the reason why nothing needs to be written.
    Returns "" if there is no replacement.
    """
    if not cure:
        return ""
    return f"; {cure}" if cure.startswith(("it is not needed", "mount ", "include ")) else f"; write {cure}"


@cache
def tables() -> Mapping[Guess, Mapping[str, Mapping[str, str]]]:
    """Return all replacements, keyed by kind and owner. The file is read when the first error needs a replacement."""
    read = tomllib.loads(files(__package__).joinpath("guesses.toml").read_text(encoding="utf-8"))
    return {
        kind: {
            owner: {name: cure for names, cure in rows.items() for name in names.split()}
            for owners, rows in read[kind].items()
            for owner in owners.split(" and ")
        }
        for kind in Guess
    }
