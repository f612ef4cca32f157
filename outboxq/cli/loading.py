"""The import of the application that a command gets as APP."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ..database.drivers import ensure_psycopg
from ..outbox import Outbox
from .console import EXIT_USAGE, fail


def load(app: str) -> Outbox:
    """Return the Outbox that `module:name` names. The working directory is importable, as for `python -m`.

    Exits if APP is wrong. Raises ConfigurationError if the module needs psycopg, which is not installed.
    """
    module_name, _, name = app.partition(":")
    written = "APP is written module:outbox, e.g. shop.tasks:outbox"
    if "://" in app:  # it may hold a password
        fail(f"APP is the address of a database; give that with --url; {written}", EXIT_USAGE)
    if not names_module(module_name):
        fail(f"{module_name!r} is not the name of a module; {written}", EXIT_USAGE)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == "psycopg":
            ensure_psycopg()  # the application's create_engine() needs it; the error says what to install
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and fails to import another one
        fail(f"there is no module {module_name!r} in {Path.cwd()} or on Python's path; {written}", EXIT_USAGE)
    found = getattr(module, name or "outbox", None)
    if not isinstance(found, Outbox):
        fail(f"{module_name} has no Outbox called {name or 'outbox'!r}; {written}", EXIT_USAGE)
    return found


def names_module(text: str) -> bool:
    """Return whether the text could be an APP. A URL never is; messages must not repeat it, since it may hold a password."""
    return "://" not in text and all(part.isidentifier() for part in text.partition(":")[0].split("."))
