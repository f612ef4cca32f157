"""Commands of the project, each in a process of its own: settings are a process's, once."""

import os
from pathlib import Path

from tests.forking import ROOT

PROJECT = Path(__file__).parent / "project"


def manage(forks, database, *arguments):
    """Run a command of the project; returns its exit code and what it said."""
    paths = os.pathsep.join([str(PROJECT), str(ROOT)])
    environment = {**os.environ, "ADMIN_DATABASE": database, "PYTHONPATH": paths}
    done = forks.run("-m", "django", *arguments, "--settings=admin_settings", env=environment, cwd=PROJECT)
    return done.returncode, done.stdout + done.stderr
