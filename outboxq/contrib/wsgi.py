"""A WSGI endpoint that receives webhooks, for any WSGI server. It needs no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ..errors import WebhookInvalid
from ..outbox import Outbox
from ..webhooks import WebhookSource

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


def webhook_application(
    outbox: Outbox, source: WebhookSource
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """Return a WSGI application that receives the webhooks from the source, at any path.

    The application returns 204 when the tasks are committed, 401 for an invalid signature or timestamp, 413 for a body
    that is too large, 411 for a body without a length, and 405 for any method except POST. A database error propagates
    to the server, which returns 500.
    """

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status, reason = _answer(outbox, source, environ)
        allow = [("Allow", "POST")] if status is HTTPStatus.METHOD_NOT_ALLOWED else []
        kind = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(reason)))] if reason else []
        start_response(f"{status.value} {status.phrase}", allow + kind)
        return [reason]

    return application


def length_of(header: str | None) -> int | None:
    """Return the length in a `Content-Length` header; None if it is missing or malformed."""
    return int(header) if header and header.isascii() and header.isdigit() and len(header) < 20 else None


def read_body(source: WebhookSource, read: Callable[[int], bytes], length: int | None) -> bytes:
    """Return the body of a request. Raises WebhookInvalid for a body that is too large, without reading all of it.

    `length` is the length of the body; None means that the body ends where the input ends. A single call to `read` may
    return only part of the body.
    """
    source.check_length(length)
    left, chunks = source.max_bytes + 1 if length is None else length, []
    while left > 0 and (chunk := read(left)):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _answer(outbox: Outbox, source: WebhookSource, environ: WSGIEnvironment) -> tuple[HTTPStatus, bytes]:
    if environ["REQUEST_METHOD"] != "POST":
        return HTTPStatus.METHOD_NOT_ALLOWED, b"send a POST"
    try:
        length = length_of(environ.get("CONTENT_LENGTH"))
        if length is None and not environ.get("wsgi.input_terminated"):
            return HTTPStatus.LENGTH_REQUIRED, b"the content-length header is missing"
        body = read_body(source, environ["wsgi.input"].read, length)
        outbox.receive_webhook(_headers(environ), body, source=source)
    except WebhookInvalid as error:
        return HTTPStatus(error.status), str(error).encode()
    return HTTPStatus.NO_CONTENT, b""


def _headers(environ: WSGIEnvironment) -> dict[str, str]:
    found: dict[str, Any] = {name: value for name, value in environ.items() if name.startswith("HTTP_")}
    return {name.removeprefix("HTTP_").replace("_", "-").lower(): str(value) for name, value in found.items()}
