"""The check that a harness that commits does not commit to a developer's database."""

from __future__ import annotations

import re
import tempfile
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from ..errors import ConfigurationError
from ..outbox import Outbox

__unittest = True  # tracebacks end at the line of the test

_TEST = re.compile(r"(?<![a-z])tests?(?![a-z])", re.IGNORECASE)


def refuse_own_database(outbox: Outbox, *, flask: Any = None, allowed: str = "") -> None:
    """Raise ConfigurationError if the database of this outbox does not look like one for tests. Django's databases are
    not checked, because its test runner creates them.

    A database for tests is in memory or in the directory for temporary files, or its name contains the word `test`, or
    it is `allowed`: the name of a database or of an SQLite file, in which ``*`` stands for any text.
    """
    if hasattr(outbox.integration, "alias"):
        return
    with nullcontext() if flask is None else flask.app_context():
        engine = outbox.store.bound_engine
        dialect = outbox.store.dialect
    name = dialect.database_name(engine.url) or engine.url.database or ""
    if not (dialect.is_in_memory(engine.url) or _is_for_tests(name, allowed)):
        raise ConfigurationError(
            f"without the test's transaction, a harness commits to {dialect.place(engine.url, lambda: None)}, which "
            "does not look like a database for tests; return the test's open transaction from outboxq_using, or let the tests use "
            f"a database with the word test in its name; if they may change this one, write outboxq_test_database = {name}"
        )


def _is_for_tests(name: str, allowed: str) -> bool:
    path = PurePath(name)
    if _TEST.search(path.stem):
        return True
    if allowed and any(fnmatchcase(one, allowed) for one in (name, path.name)):
        return True
    return path.is_absolute() and path.is_relative_to(Path(tempfile.gettempdir()).resolve())
