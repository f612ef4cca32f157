"""Run commands of the project in separate processes, because Django's settings are global to a process."""

import os
from pathlib import Path

from tests import forked
from tests.forked import ROOT

PROJECT = Path(__file__).parent / "project"


def manage(database, *arguments):
    """Run a command of the project; return its exit code and its output."""
    paths = os.pathsep.join([str(PROJECT), str(ROOT)])
    environment = {**os.environ, "ADMIN_DATABASE": database, "PYTHONPATH": paths}
    command = [*forked.PYTHON, "-m", "django", *arguments, "--settings=admin_settings"]
    done = forked.run(command, warm=forked.FRAMEWORKS, env=environment, cwd=PROJECT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr
