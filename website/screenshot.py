"""Take a picture of the dashboard in a browser: python -m website.screenshot"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from outboxq import migrations
from outboxq.database.engine import make_engine
from outboxq.web import application
from tests import chromium
from tests.integrations.dashboard.filling import fill
from tests.integrations.dashboard.serving import Site

from .pictures import FOLDER

PICTURE = FOLDER / "dashboard.png"
SIZE = "1280,800"


def take() -> None:
    """Fill a new SQLite file with tasks in every status, serve its dashboard, and store a picture of the first page."""
    browser = chromium.find()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'shop.db'}"
        migrations.upgrade(url)
        filling = fill(make_engine(url))
        with Site(application(filling.outbox)) as site:
            options = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/profile",
            ]
            command = [str(browser.path), *options, f"--window-size={SIZE}", f"--screenshot={PICTURE}", site.url]
            subprocess.run(
                command, env={**os.environ, **browser.variables}, check=True, capture_output=True, timeout=120
            )


if __name__ == "__main__":
    take()
