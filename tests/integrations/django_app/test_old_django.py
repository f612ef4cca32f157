"""A Django that is too old for our models, simulated by its version number and a missing class."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from outboxq.contrib.django.apps import OLDEST

ROOT = Path(__file__).parents[3]

STARTED = """
import django
from django.conf import settings
from django.core.serializers import json, python  # they need what is taken away below
from django.db import models
from django.db.migrations import executor

django.VERSION = (4, 2, 16, "final", 0)
del models.CompositePrimaryKey
settings.configure(SECRET_KEY="not a secret", INSTALLED_APPS=["outboxq.contrib.django"])
django.setup()
"""


def test_an_old_django_causes_an_error_that_names_the_required_version():
    done = subprocess.run([sys.executable, "-c", STARTED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "outboxq needs Django 5.2 or later, but this is Django 4.2.16; upgrade Django" in last
    assert "CompositePrimaryKey" not in done.stderr


def test_the_extra_requires_the_same_django_version():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"django>={OLDEST[0]}.{OLDEST[1]}" in extras["django"]
