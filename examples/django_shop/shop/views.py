from __future__ import annotations

import json
import uuid
from typing import Any

from django.db import transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from .models import LedgerEntry, Order, Stock
from .tasks import book


@csrf_exempt  # an API, whose clients do not send our cookies
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    wanted = parsed(request.body)
    if wanted is None:
        return JsonResponse({"error": "an order has a reference, an item, and a quantity of 1 or more"}, status=422)
    try:
        with transaction.atomic():
            order, is_new = place(**wanted, key=request.headers.get("Idempotency-Key"))
            answer = JsonResponse(described(order), status=201 if is_new else 200)
    except SoldOut as error:  # outside the block, so everything is rolled back, including the task
        return JsonResponse({"error": str(error)}, status=409)
    return answer


@require_GET
def show_order(_request: HttpRequest, order_id: uuid.UUID) -> JsonResponse:
    order = Order.objects.filter(pk=order_id).first()
    if order is None:
        return JsonResponse({"error": "there is no such order"}, status=404)
    return JsonResponse(described(order))


def place(*, reference: str, item: str, quantity: int, key: str | None) -> tuple[Order, bool]:
    """Return the order of this request, and whether it is new. Call it inside `atomic()`."""
    order_id = uuid.uuid4()
    task = book.using(idempotency_key=key).enqueue(order_id)
    if not task.created:  # the request was repeated
        return Order.objects.get(task_id=task.id), False

    stock = Stock.objects.filter(item=item, left__gte=quantity)
    if not stock.update(left=F("left") - quantity):
        raise SoldOut(f"there is not enough {item}")
    cents = Stock.objects.get(item=item).cents * quantity
    order = Order(id=order_id, reference=reference, item=item, quantity=quantity, cents=cents, task_id=task.id)
    order.save(force_insert=True)
    return order, True


class SoldOut(Exception):
    pass


def parsed(body: bytes) -> dict[str, Any] | None:
    try:
        given = json.loads(body)
        wanted = {"reference": given["reference"], "item": given["item"], "quantity": given["quantity"]}
    except (ValueError, KeyError, TypeError):
        return None
    words = (wanted["reference"], wanted["item"])
    is_sound = all(isinstance(word, str) and 1 <= len(word) <= 100 for word in words)
    return wanted if is_sound and type(wanted["quantity"]) is int and wanted["quantity"] >= 1 else None


def described(order: Order) -> dict[str, Any]:
    return {
        "id": str(order.id),
        "item": order.item,
        "quantity": order.quantity,
        "cents": order.cents,
        "booked": LedgerEntry.objects.filter(order=order).exists(),
    }
