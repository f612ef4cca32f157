"""Orders with tasks, committed after random delays beside a worker. Every third order fails after its enqueue."""

import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from django.db import connections, transaction


class Refused(Exception):
    pass


def place(number, delay):
    from shop.models import Order
    from shop.tasks import look

    rows = [lambda: Order.objects.create(number=number), lambda: look.enqueue(number)]
    random.shuffle(rows)
    try:
        with transaction.atomic():
            for row in rows:
                row()
                threading.Event().wait(random.uniform(0, delay))
            if number % 3 == 0:
                raise Refused
    except Refused:
        return


def run(rounds, *, delay, threads=1):
    """Place orders while a worker runs, and return what became of the tasks."""
    from outboxq.contrib.django import outbox
    from outboxq.contrib.django.models import TaskExecution
    from shop.models import Order

    def some(first):
        try:
            for number in range(first, rounds + 1, threads):
                place(number, delay)
                threading.Event().wait(random.uniform(0, delay))  # on SQLite, lets the worker write
        finally:
            connections.close_all()

    worker = outbox.worker(concurrency=2)
    worker.start()
    if threads == 1:
        some(1)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, range(1, threads + 1)))
    assert worker.stop()
    assert outbox.worker(concurrency=2).run(burst=True) == 0
    results = Counter(TaskExecution.objects.filter(task_name="shop.tasks.look").values_list("status", "result"))
    numbers = set(Order.objects.values_list("number", flat=True))
    assert set(results) <= {("Completed", "true"), ("Completed", "false")}, results
    return {
        "refused": rounds - len(numbers),
        "seen": results["Completed", "true"],
        "missed": len(numbers) - results["Completed", "true"],
        "of refused": sum(results.values()) - len(numbers),
    }


if __name__ == "__main__":
    import django

    django.setup()
    print(run(int(sys.argv[1]), threads=int(sys.argv[2]), delay=float(sys.argv[3])))
