"""The data of a page as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ..model.display import as_json, redacted

PREFIX: Final = "/api/"

_PRIVATE: Final = frozenset({"args", "result", "headers"})
"""Fields of records with JSON of the application."""


def path_of(page: str) -> str:
    """Return the path of the JSON beside the page with this path."""
    return f"{PREFIX}{page.strip('/') or 'overview'}.json"


def document(data: object, *, may_see_arguments: bool) -> str:
    """Return the JSON of a page's data. Arguments, results and headers are null where they are not to be seen.

    Everything but ASCII is escaped; large numbers keep their digits.
    """
    return json.dumps(_public(as_json(data), may_see_arguments), allow_nan=False) + "\n"


def _public(value: Any, may_see_arguments: bool) -> Any:
    if isinstance(value, Mapping):
        return {name: _member(name, one, may_see_arguments) for name, one in value.items()}
    return [_public(one, may_see_arguments) for one in value] if isinstance(value, list) else value


def _member(name: str, value: Any, may_see_arguments: bool) -> Any:
    if name not in _PRIVATE:
        return _public(value, may_see_arguments)
    return redacted(value) if may_see_arguments and isinstance(value, str) else None
