"""A project whose tasks outboxq runs. The test that starts it provides the database."""

import json
import os

SECRET_KEY = "of tests"
USE_TZ = True
INSTALLED_APPS = ["outboxq.contrib.django", "parity"]
DATABASES = {"default": json.loads(os.environ["TASKS_DATABASE"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
BACKEND = "outboxq.contrib.django.OutboxqBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "queue-1", "mail"], "OPTIONS": {"modules": ["elsewhere"]}}
}
