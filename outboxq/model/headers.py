"""The headers of a task: short texts beside its arguments, such as a request's id, kept as one JSON object. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import InvalidArgument
from .options import is_text

MAX_HEADER_NAME = 100
"""Characters in the name of a header."""
MAX_HEADERS = 8 * 1024
"""Bytes of all headers of a task together, as the JSON that is stored."""
RESERVED = "outboxq-"
"""Beginning of the names that belong to outboxq, in any mixture of upper and lower case."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def headers_as_json(headers: Mapping[str, str], name: str) -> str | None:
    """Return the headers as they are stored; None if there are none. `name` is that of the thing that has them.

    Names are kept as they are given, and compared exactly. Raises InvalidArgument for what is no mapping of texts, for a name
    that is reserved or longer than 100 characters, and for more than 8 KiB in all.
    """
    if not isinstance(headers, Mapping):
        raise InvalidArgument(
            f"headers of {name} must be a mapping of texts, such as {{'request-id': 'r1'}}, not {type(headers).__name__}"
        )
    for key, value in headers.items():
        if not is_text(key) or not 1 <= len(key) <= MAX_HEADER_NAME:
            raise InvalidArgument(
                f"the name {key!r:.42} in headers of {name} must be a text of 1 to {MAX_HEADER_NAME} characters, without NUL or lone "
                "surrogates"
            )
        if key.lower().startswith(RESERVED):
            raise InvalidArgument(
                f"headers of {name} have the name {key!r}, but {RESERVED}… is reserved; choose another"
            )
        if not is_text(value):
            raise InvalidArgument(
                f"the header {key!r} of {name} must be a text without NUL or lone surrogates; write str(…)"
            )
    if not headers:
        return None
    stored = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))
    if len(stored.encode()) > MAX_HEADERS:
        raise InvalidArgument(
            f"headers of {name} are {len(stored.encode())} bytes as JSON, and {MAX_HEADERS} are the limit; pass larger values as "
            "arguments"
        )
    return stored


def headers_of_json(stored: str | None) -> Mapping[str, str]:
    """Return stored headers, read-only. Raises ValueError for what is no JSON object of texts: foreign SQL may have written it."""
    if stored is None:
        return NO_HEADERS
    try:
        found = json.loads(stored)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(found, dict) or not all(is_text(one) for pair in found.items() for one in pair):
        raise ValueError("it is no JSON object of texts")
    return MappingProxyType(found)
