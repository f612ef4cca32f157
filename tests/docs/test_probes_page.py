"""docs/operate/probes.md does what it says: `health.py` is run as a program, and asked as Kubernetes asks it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from sqlalchemy.engine import make_url

from tests import forked
from tests.forked import ROOT
from tests.waiting import until

pytestmark = pytest.mark.in_turn

PAGE = (ROOT / "docs" / "operate" / "probes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {found[1]: block for block in BLOCKS if (found := re.match(r"# (\w+\.py)\n", block))}
[CHECK] = [block for block in BLOCKS if block not in FILES.values()]
[UPGRADE] = re.findall(r"^```sh\noutboxq (.*)\n```$", PAGE, re.MULTILINE)


def test_a_worker_with_a_health_endpoint(database, tmp_path):
    url = make_url(database.url).render_as_string(hide_password=False)
    address = url if database.name == "postgresql" else f"sqlite:///{tmp_path}/shop.db"
    port = free_port()
    replaced = {'"sqlite:///shop.db"': repr(address), '("", 8080)': f'("127.0.0.1", {port})'}
    for name, source in FILES.items():
        for old, new in replaced.items():
            source = source.replace(old, new)
        (tmp_path / name).write_text(source)
    program = Program(tmp_path)
    assert program.run("-m", "outboxq", *UPGRADE.split()) == ""
    with program.start("health.py") as process:
        try:
            until(lambda: asked(port, "/ready") == 200)
            assert asked(port, "/") == 200
            until(lambda: program.run("-c", CHECK) != "")
        finally:
            process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert program.run("-c", CHECK) == ""


def test_its_worker_is_alive_before_it_is_ready(monkeypatch, tmp_path):
    """Its database is away: `/ready` is refused, and `/` is not, since a restart would not help."""
    [probe] = re.findall(r"^class Probe.*?(?=^probe = )", FILES["health.py"], re.DOTALL | re.MULTILINE)
    from outboxq import Outbox

    worker = Outbox("postgresql+psycopg://nobody@127.0.0.1:1/nothing").worker()
    assert (worker.is_healthy, worker.health.listening, worker.health.error) == (True, False, "not connected yet")
    del probe
