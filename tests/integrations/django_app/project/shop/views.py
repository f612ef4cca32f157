from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import JsonResponse

from shop.models import Order
from shop.tasks import send


def place(request, number):
    """Write in the transaction of ATOMIC_REQUESTS."""
    number = int(number)
    Order.objects.create(number=number)
    handle = send.enqueue(number)
    if number < 0:
        raise ValueError("refused")
    return JsonResponse({"task": str(handle.id)})


@transaction.non_atomic_requests
async def place_async(request, number):
    number = int(number)
    if number < 0:
        send.enqueue(number)  # Django refuses this, because it would block the event loop
    handle = await sync_to_async(send.enqueue)(number)
    return JsonResponse({"task": str(handle.id)})
