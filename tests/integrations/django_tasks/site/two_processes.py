"""A request and a worker as the processes that they are: this one enqueues, `manage.py outboxq worker` runs."""

import json
import subprocess
import sys

import django
from django.core.management import call_command

django.setup()
call_command("migrate", run_syncdb=True, verbosity=0)

from elsewhere import jobs  # noqa: E402 - models need the set-up
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
