"""The tasks of the cases. Some are named as in Django's own tests/tasks/tasks.py, so that the cases can be compared."""

import sys
from datetime import timedelta
from types import SimpleNamespace

from outboxq import Cancel, RetryPolicy, Snooze
from outboxq.contrib.django import backend, outbox
from parity.compat import task
from parity.models import Order

SOON = RetryPolicy(max_attempts=3, wait=0)


@task()
def noop_task(*args, **kwargs):
    return None


@task
def noop_task_from_bare_decorator(*args, **kwargs):
    return None


@task()
async def noop_task_async(*args, **kwargs):
    return None


@task()
async def async_order(number):
    order = await Order.objects.acreate(number=number)
    return order.number


@task()
def calculate_meaning_of_life():
    return 42


@task()
def echo(*args, **kwargs):
    return [list(args), kwargs]


@task()
def annotated(number: int) -> str:
    return type(number).__name__


@task()
def failing_task_value_error():
    raise ValueError("This Task failed due to ValueError")


@task()
def failing_task_system_exit():
    raise SystemExit("This Task failed due to SystemExit")


@task()
def failing_task_keyboard_interrupt():
    raise KeyboardInterrupt("This Task failed due to KeyboardInterrupt")


@task()
def complex_exception():
    raise ValueError(ValueError("This task failed"))


@task()
def complex_return_value():
    return lambda: True


@task()
def exit_task():
    sys.exit(1)


@task(takes_context=True)
def get_task_id(context):
    return context.task_result.id


@task(takes_context=True)
def check_context(context, attempt):
    assert context.attempt == attempt
    assert context.task_result.status == "RUNNING"
    assert context.execution.attempt == attempt
    return context.task_result.worker_ids


# Features that outboxq adds.


@backend.task(retry=SOON, takes_context=True)
def third_time_lucky(context):
    if context.attempt < 3:
        raise LookupError(f"attempt {context.attempt} of {len(context.task_result.errors)} before")
    return context.attempt


@backend.task(retry=SOON)
def never_lucky():
    raise LookupError("again")


@backend.task(retry=SOON, transactional=True)
def book(number, fails=False):
    Order.objects.create(number=number)
    noop_task.enqueue(number)
    if fails:
        raise ValueError("after all")
    return number


@backend.task(queue_name="mail", priority=7, lease=timedelta(minutes=5), timeout=20, on_dead_letter="hold")
def declared():
    return "declared"


@task
def gives_up():
    raise Cancel("nobody wants it")


@task(takes_context=True)
def snoozes(context):
    if context.execution.claim.lease_token < 3:
        return Snooze(0)
    return context.attempt


not_a_task = sys.exit
another_name = calculate_meaning_of_life
disguised = SimpleNamespace(
    module_path="parity.tasks.disguised",
    func=sys.exit,
    call=sys.exit,
    takes_context=False,
    backend="default",
    queue_name="default",
    priority=0,
    run_after=None,
)
plain = task()(noop_task.func)
"""Its import path leads to another task."""


@outbox.periodic("30 2 * * *", tz="Europe/Berlin", args={"number": 7})
@task(queue_name="mail")
def scheduled(number):
    Order.objects.create(number=number)
