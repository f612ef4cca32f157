"""The project's settings: on SQLite, or where SHOP_DATABASE_URL says, e.g. postgresql://user@host/database."""

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
"""Seconds until somebody else takes over the task of a worker that died."""


def database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": parts.path.removeprefix("/"),
            # A transaction that reads first and writes later fails in WAL mode when a worker has written meanwhile, whatever
            # the timeout; one that begins as a writer waits.
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
