"""docs/how-to/receive-webhooks.md: its code runs, with each framework's endpoint."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import forked
from tests.forked import ROOT

PAGE = (ROOT / "docs" / "how-to" / "receive-webhooks.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {found[1]: block for block in BLOCKS if (found := re.match(r"# (\w+\.py)\n", block))}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

POSTED = """
from outboxq.webhooks import signed_headers

body = b'{"type": "order.paid", "data": {"order": 8}}'
signed = signed_headers("msg-2", body, SECRET)
assert [post(body, signed), post(body, signed), post(body + b" ", signed), post(b"x" * 1_048_577, {})] == [204, 204, 401, 413]

import billing

assert billing.outbox.worker(concurrency=1).run(burst=True) == 0
assert [task.result for task in billing.outbox.store.tasks()] == ['"order.paid 8"']
print("done")
"""
CLIENTS = {
    "flask": """
import billing
billing.outbox.upgrade()
from flask_app import app

def post(body, headers):
    return app.test_client().post("/hooks/erp", data=body, headers=headers).status_code
""",
    "fastapi": """
import billing
billing.outbox.upgrade()
import asyncio
import httpx
from fastapi_app import app

def post(body, headers):
    async def send():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            return (await client.post("/hooks/erp", content=body, headers=headers)).status_code

    return asyncio.run(send())
""",
    "wsgi": """
import billing
billing.outbox.upgrade()
from werkzeug.test import Client
from wsgi_app import application

def post(body, headers):
    return Client(application).post("/hooks/erp", data=body, headers=headers).status_code
""",
    "django": """
import django
from django.conf import settings

databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "billing.db"}}
settings.configure(
    SECRET_KEY="not a secret", ROOT_URLCONF="urls", DATABASES=databases, INSTALLED_APPS=["outboxq.contrib.django"], USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"],
)
django.setup()
from django.core.management import call_command
from django.test import Client

call_command("migrate", verbosity=0)

def post(body, headers):
    client = Client(SERVER_NAME="localhost", enforce_csrf_checks=True)
    return client.post("/hooks/erp", body, content_type="application/json", headers=headers).status_code
""",
}
OUTBOX = 'outbox = Outbox(configure_sqlite(create_engine("sqlite:///billing.db")))'


def run(folder: Path, source: str, own: dict[str, str] | None = None) -> str:
    for name, text in {**FILES, **(own or {}), "program.py": source}.items():
        (folder / name).write_text(text)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{ROOT}", "ERP_SECRET": SECRET}
    command = [*forked.PYTHON, "program.py"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with forked.Popen(command, warm=forked.FRAMEWORKS, cwd=folder, env=environment, **streams) as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return str(said)


def test_the_example_of_the_page_runs(tmp_path):
    (example,) = [block for block in BLOCKS if block not in FILES.values()]
    assert run(tmp_path, f"{example}\nprint('done')\n").splitlines()[-1:] == ["done"]


@pytest.mark.parametrize("name", CLIENTS)
def test_the_endpoint_accepts_a_webhook_only_once(tmp_path, name):
    own = {}
    if name == "django":
        assert FILES["billing.py"].count(OUTBOX) == 1
        text = re.sub(
            r"^outbox = .*$", "from outboxq.contrib.django import outbox", FILES["billing.py"], flags=re.MULTILINE
        )
        own["billing.py"] = text
    posted = POSTED.replace("SECRET", repr(SECRET))
    assert run(tmp_path, CLIENTS[name] + posted, own).splitlines()[-1:] == ["done"]
