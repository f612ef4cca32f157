"""Commands of the project, each in a process of its own: settings are a process's, once."""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent / "project"
ROOT = Path(__file__).parents[3]


def manage(database, *arguments):
    """Run a command of the project; returns its exit code and what it said."""
    paths = os.pathsep.join([str(PROJECT), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", *arguments, "--settings=admin_settings"],
        env={**os.environ, "ADMIN_DATABASE": database, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return done.returncode, done.stdout + done.stderr
