"""Texts that a browser keeps for the dashboard, signed so that it cannot change them."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import time
from typing import Any


def derived(key: bytes, *parts: str) -> bytes:
    """Return the key of a purpose, which tells nothing of `key`. Each part is one text: no two lists of parts give the same key."""
    return hmac.digest(key, "".join(f"{len(part)}:{part}" for part in parts).encode(), "sha256")


def matches(given: str, right: str) -> bool:
    """Return whether the texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape"))


def sealed(key: bytes, value: object, *, seconds: int) -> str:
    """Return the value as text for a cookie, which `opened` accepts for so many seconds."""
    content = json.dumps([int(time.time()) + seconds, value]).encode()
    return f"{_encoded(content)}.{_encoded(hmac.digest(key, content, 'sha256'))}"


def opened(key: bytes, text: str) -> Any:
    """Return the value that `sealed` had. None: the text was changed, is too old, or was made with another key."""
    first, _, second = text.partition(".")
    try:
        content, signature = _decoded(first), _decoded(second)
    except (binascii.Error, ValueError):
        return None
    if not hmac.compare_digest(hmac.digest(key, content, "sha256"), signature):
        return None
    expires_at, value = json.loads(content)
    return value if time.time() < expires_at else None


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
