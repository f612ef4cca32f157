"""Tracing hooks whose packages are not installed or not requested: nothing is imported, and a failed import says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import forked

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

REFUSING = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("opentelemetry", "sentry_sdk"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuses())
"""
WORKS = """
from outboxq import Outbox

outbox = Outbox("sqlite:///outboxq.db")

@outbox.task(name="shop.charge")
def charge(): print("charged")

charge.using(outbox).enqueue()
outbox.worker().run(burst=True)
"""


def run(script, folder):
    """Run the script in a new process, and return the completed process."""
    return forked.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        warm=forked.PACKAGES,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("outboxq.contrib.opentelemetry", "opentelemetry-api", "opentelemetry"),
        ("outboxq.contrib.sentry", "sentry-sdk", "sentry"),
    ],
)
def test_the_error_for_a_missing_package_names_the_extra(tmp_path, module, package, extra):
    done = run(f"{REFUSING}\nimport {module}", tmp_path)
    assert done.returncode == 1
    assert f"ImportError: {module} needs {package}; run: pip install 'outboxq[{extra}]'" in done.stderr


@pytest.mark.usefixtures("sqlite_url")
def test_a_program_without_the_hooks_works_and_does_not_import_them(tmp_path):
    done = run(f"{REFUSING}\n{WORKS}\nprint([name for name in sys.modules if 'telemetry' in name])", tmp_path)
    assert done.stdout == "charged\n[]\n", done.stderr
