"""A reader follows docs/how-to/two-services.md with a real RabbitMQ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests import forked, postgres
from tests.forked import ROOT
from tests.waiting import until

PAGE = ROOT / "docs" / "how-to" / "two-services.md"
EXAMPLE = ROOT / "examples" / "two_services"
FILES = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))

pytestmark = pytest.mark.apart


def test_the_page_and_the_example_have_the_same_files():
    assert {path.name: path.read_text() for path in EXAMPLE.glob("*.py")} == FILES


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
def test_an_accepted_order_is_invoiced_and_a_refused_order_is_not(bench, tmp_path):
    for name, source in FILES.items():
        (tmp_path / name).write_text(source)
    port = postgres.free_port()
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "RABBITMQ_URL": bench.server.direct,
        "SHOP_PORT": str(port),
    }
    given = {"warm": forked.FRAMEWORKS, "cwd": tmp_path, "env": environment, "text": True}
    started = forked.Popen([sys.executable, "start.py"], **given, starts_others=True, stdout=subprocess.PIPE)
    try:
        assert started.stdout is not None
        assert any("is ready" in line for line in started.stdout)
        url = f"http://127.0.0.1:{port}/orders"
        until(lambda: posted(url, 995) == 201, seconds=60)
        assert posted(url, 99_500) == 409
        assert posted(url, 250) == 201

        def invoices() -> str:
            return str(forked.run([sys.executable, "billing.py"], **given, capture_output=True, check=True).stdout)

        until(lambda: len(invoices().splitlines()) >= 2, seconds=60)
        assert sorted(invoices().splitlines()) == ["order 1: 995 cents", "order 2: 250 cents"]
    finally:
        started.terminate()
        started.communicate(timeout=60)
    assert started.returncode == 0


def posted(url: str, cents: int) -> int | None:
    """Return the status of the answer, or None if the server is not listening yet."""
    try:
        with urllib.request.urlopen(url, f"cents={cents}".encode(), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return None
