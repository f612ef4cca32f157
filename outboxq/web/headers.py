"""The headers of every answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from werkzeug.wrappers import Response

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Limits of what a browser may do with an answer: run scripts of the dashboard only, show it in no frame, give it to no other site."""


def secure(response: Response) -> None:
    """Add the headers. Nothing keeps a page that does not say otherwise: it may show what only this viewer may see."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
