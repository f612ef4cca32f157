"""A request and a worker in separate processes: this one enqueues tasks, and `manage.py outboxq worker` runs them."""

import json
import subprocess
import sys

import django
from django.core.management import call_command

django.setup()
call_command("migrate", run_syncdb=True, verbosity=0)

from elsewhere import jobs  # noqa: E402 - models need django.setup()
from parity import tasks  # noqa: E402

enqueued = [
    tasks.calculate_meaning_of_life.enqueue(),
    tasks.async_order.enqueue(1),
    tasks.book.enqueue(2),
    jobs.listed.enqueue(),
]
subprocess.run([sys.executable, "-m", "django", "outboxq", "worker", "--burst"], check=True, timeout=240)
for result in enqueued:
    result.refresh()
print(json.dumps([result.return_value for result in enqueued]))
