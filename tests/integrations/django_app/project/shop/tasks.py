import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress

from asgiref.sync import async_to_sync
from django.db import connections, transaction

from outboxq import Cancel, RetryPolicy, TaskContext, WebhookSource
from outboxq.contrib.django import outbox, outboxes
from shop.models import Booking, Order

seen = []
"""The arguments of tasks that ran in this process."""


@outbox.task(queue="mail")
def send(order: int) -> str:
    seen.append(order)
    return f"sent {order}"


erp = WebhookSource(name="erp", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", max_bytes=1000)


@outbox.receive("billing.*", source=erp)
def bill(payload: int) -> None:
    seen.append(payload)


@outbox.task(transactional=True, retry=RetryPolicy.never())
def book(order: int, then: str = "return") -> None:
    Booking.objects.create(order=order)
    send.enqueue(order)
    if then == "raise":
        raise ValueError("no")
    if then == "cancel":
        raise Cancel("no")
    if then == "callback":
        transaction.on_commit(lambda: 1 / 0)
    if then == "exit":
        transaction.on_commit(sys.exit)
    if then == "open":
        transaction.atomic().__enter__()
    if then == "savepoint":
        try:
            with transaction.atomic():
                Booking.objects.create(order=order)
                raise KeyError(order)
        except KeyError:
            pass


@outbox.task(retry=RetryPolicy.never())
def order_without_autocommit(number: int, then: str) -> None:
    Order.objects.create(number=number)
    if then == "raise":
        raise ValueError("no")
    transaction.commit()


async def book_async(order: int) -> None:
    await Booking.objects.acreate(order=order)


@outbox.task(transactional=True, retry=RetryPolicy.never())
def book_in_a_coroutine(how: str) -> None:
    if how == "handler":  # Django runs the coroutine in the handler's thread
        async_to_sync(book_async)(1)
    elif how == "write":
        asyncio.run(book_async(2))
    else:
        asyncio.run(asyncio.to_thread(send.enqueue, 2))


@outbox.task(retry=RetryPolicy(max_attempts=2, wait=0))
def fulfil(ctx: TaskContext, order: int) -> int:
    """Run a plain step, and a transactional one whose callback fails after the commit. The first attempt then fails."""
    found = ctx.step("count", lambda: seen.append(order) or order)
    ctx.step("book", book_in_step, found, transactional=True)
    with suppress(ValueError):
        ctx.step("lost", book_in_step, -1, transactional=True)
    if ctx.attempt == 1:
        raise OSError("no answer")
    return found


def book_in_step(order: int) -> None:
    Booking.objects.create(order=order)
    send.enqueue(order)
    if order < 0:
        raise ValueError("no")
    transaction.on_commit(lambda: 1 / 0)


@outbox.task(retry=RetryPolicy.never(), transactional=True)
def reach_for_sqlalchemy(ctx: TaskContext) -> None:
    ctx.session.execute("SELECT 1")


@outbox.task(retry=RetryPolicy.never(), transactional=True)
def write_apart() -> None:
    send.using(outbox).enqueue(7)


@outbox.task(retry=RetryPolicy.never(), transactional=True)
def touch_nothing() -> None:
    """Write nothing, as a task that only calls another service."""


@outbox.task(retry=RetryPolicy.never(), transactional=True)
def lose_server() -> None:
    Booking.objects.create(order=7)
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@outbox.task(retry=RetryPolicy.never(), transactional=True)
def meet_deadlock() -> None:
    """Fail in a nested block, so that the outer transaction continues."""
    Booking.objects.create(order=7)
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute("DO $$ BEGIN RAISE 'deadlock detected' USING ERRCODE = '40P01'; END $$")


@outbox.task(retry=RetryPolicy.never(), transactional=True)
def commit_by_hand() -> None:
    Booking.objects.create(order=7)
    with connections["default"].cursor() as cursor:
        cursor.execute("COMMIT")


@outbox.task(lease=3, transactional=True, queue="deadly")
def book_once(ctx: TaskContext, order: int) -> None:
    """Book an order. Every fifteenth order kills the process the first time, just before the commit."""
    Booking.objects.create(order=order)
    send.enqueue(order)
    if order % 15 == 7 and ctx.recovery_attempts == 0:
        os.kill(os.getpid(), signal.SIGKILL)


@outbox.task(lease=3, transactional=True, queue="deadly")
def book_slowly(order: int) -> None:
    """Book an order slowly enough that a killed worker has unfinished tasks."""
    Booking.objects.create(order=order)
    send.enqueue(order)
    threading.Event().wait(0.01)


@outbox.task(queue="orders")
def look(order: int) -> bool:
    """Return whether the business row exists."""
    return Order.objects.filter(number=order).exists()


@outbox.task(queue="connections")
def open_connection() -> int:
    """Break the connection for this thread's next task, as a server restart does."""
    connection = connections["default"]
    connection.ensure_connection()
    connection.connection.close()
    connection.errors_occurred = True
    return threading.get_ident()


@outbox.task(queue="connections")
def lose_connection() -> None:
    """Break the connection unnoticed, as a restart of an idle server does. (SQLite has no server.)"""
    connection = connections["default"]
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        connection.connection.close()


@outbox.task(queue="connections")
def leave_open() -> None:
    """Begin a transaction and leave it open."""
    transaction.atomic().__enter__()
    Order.objects.create(number=-1)


@outbox.task(queue="connections")
def use_connection(number: int = 0) -> int:
    return Order.objects.create(number=number).pk


@outbox.task(subscribe="order.*")
def count_order(payload: dict) -> None:
    seen.append(payload)


@outboxes["other"].task(name="shop.elsewhere")
def elsewhere() -> None:
    seen.append("elsewhere")
