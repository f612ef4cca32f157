"""A view that receives webhooks."""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from ...errors import WebhookInvalid
from ...webhooks import WebhookSource
from ..wsgi import length_of, read_body
from .django_outbox import DjangoOutbox


def webhook_view(outbox: DjangoOutbox, source: WebhookSource) -> Callable[[HttpRequest], HttpResponse]:
    """Return a view that receives the webhooks from the source, for ``path("hooks/erp", …)``.

    The view needs no CSRF token, because the signature authenticates the sender. It ignores ATOMIC_REQUESTS and uses a
    separate transaction. It returns 204 when the tasks are committed, 401 for an invalid signature or timestamp, 413
    for a body that is too large, and 405 for any method except POST. A database error is raised, and Django returns
    500.
    """

    @csrf_exempt
    @transaction.non_atomic_requests(using=outbox.alias)
    @require_POST
    def receive_webhook(request: HttpRequest) -> HttpResponse:
        try:
            body = read_body(source, request.read, length_of(request.headers.get("content-length")))
            with transaction.atomic(using=outbox.alias):
                outbox.receive_webhook(request.headers, body, source=source, using=outbox.alias)
        except WebhookInvalid as error:
            return HttpResponse(str(error), status=error.status, content_type="text/plain; charset=utf-8")
        return HttpResponse(status=204)

    return receive_webhook
