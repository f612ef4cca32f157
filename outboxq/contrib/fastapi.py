"""FastAPI and Starlette: an endpoint that receives webhooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..errors import WebhookInvalid
from ..outbox import Outbox
from ..webhooks import WebhookSource
from .wsgi import length_of


def webhook_endpoint(outbox: Outbox, source: WebhookSource) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that receives the webhooks from the source, for ``app.post("/hooks/erp")(…)``.

    The endpoint reads the raw body, and enqueues the tasks in a thread, so that it does not block the event loop. It
    returns 204 when the tasks are committed, 401 for an invalid signature or timestamp, and 413 for a body that is too
    large. A database error is raised, and the framework returns 500.
    """

    async def receive_webhook(request: Request) -> Response:
        try:
            body = await _body(source, request)
            await run_in_threadpool(outbox.receive_webhook, request.headers, body, source=source)
        except WebhookInvalid as error:
            return PlainTextResponse(str(error), status_code=error.status)
        return Response(status_code=204)

    return receive_webhook


async def _body(source: WebhookSource, request: Request) -> bytes:
    """Return the body. Raises WebhookInvalid as soon as the body is too large."""
    source.check_length(length_of(request.headers.get("content-length")))
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        source.check_length(len(body))
    return bytes(body)
