"""The project's settings. SHOP_DATABASE_URL names the database, e.g. postgresql://user@host/database; SQLite by default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

BASE = Path(__file__).parents[1]

INSTALLED_APPS = ["outboxq.contrib.django", "shop"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "of an example")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"

LEASE = float(os.environ.get("SHOP_LEASE", "60"))
"""The time in seconds after which another worker runs a dead worker's task."""


def database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": parts.path.removeprefix("/"),
            # In WAL mode, a transaction that reads first and writes later fails if a worker has written in between,
            # whatever the timeout. A transaction that begins as a writer waits instead.
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 30,
                "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
            },
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.removeprefix("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }


DATABASES = {"default": database(os.environ.get("SHOP_DATABASE_URL", f"sqlite:///{BASE / 'shop.db'}"))}
