"""One trace, from a request to a Flask application to the tasks of its task, with two worker processes and both hooks."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forked
from tests.integrations.tracing.endpoint import listening
from tests.scraping import free_ports, scrape
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.in_turn]

ROOT = Path(__file__).parents[3]
TRACE, PARENT = "c0ffee" + "0" * 25 + "1", "00000000000000aa"
"""The trace id and the span id of the client, under which everything happens."""


ATTEMPTS = Counter(
    {
        ("payments", "shop.charge", "completed"): 1,
        ("warehouse", "shop.ship", "completed"): 2,
        ("mail", "shop.thank", "completed"): 1,
        ("ledger", "shop.book", "failed"): 1,
    }
)


@pytest.fixture
def orders(database):
    number = "INTEGER" if database.name == "sqlite" else "SERIAL"
    database.run(f"CREATE TABLE traced_orders (id {number} PRIMARY KEY, number INTEGER NOT NULL)")
    yield
    database.run("DROP TABLE traced_orders")


@contextmanager
def process(log, env, *command):
    """Run `flask …` as a process, and end it with all processes that it has started."""
    words = [*forked.PYTHON, "-m", "flask", "--app", "tests.integrations.tracing.shop", *command]
    with log.open("w") as output:
        given = {"env": {**os.environ, **env}, "stdout": output, "stderr": output}
        started = forked.Popen(
            words, warm=forked.FRAMEWORKS, starts_others="--processes" in command, start_new_session=True, **given
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def attempts(port):
    """The attempts that a worker process has counted, by queue, task and outcome; none while the process is starting."""
    try:
        found = scrape(port).get("outboxq_task_attempts_total", {})
    except OSError:
        return Counter()
    named = {
        tuple(dict(one)[name] for name in ("queue", "task", "outcome")): int(count) for one, count in found.items()
    }
    return Counter({key: count for key, count in named.items() if count})


def order(address, number):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "sentry-trace": f"{TRACE}-{PARENT}-1"}
    request = urllib.request.Request(f"{address}/orders/{number}", method="POST", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["task"]


def test_one_trace_links_a_request_its_task_and_the_tasks_that_it_enqueues(database, orders, tmp_path):
    traces, web, work = (tmp_path / name for name in ("traces", "web", "work"))
    traces.touch()

    def spans():
        return [json.loads(line) for line in traces.read_text().splitlines()]

    port = free_ports(2)
    options = ("--processes", "2", "--poll", "100ms", "--metrics-port", str(port))
    with listening() as sentry:
        env = {"SHOP_URL": database.url, "TRACES": str(traces), "SENTRY_DSN": sentry.dsn}
        with (
            process(web, env, "run", "--port", "0"),
            process(work, env | {"AT_EXIT": "1"}, "outboxq", "worker", *options) as worker,
        ):
            found = until(lambda: re.search(r"Running on (http://[\d.:]+)", web.read_text()))
            until(lambda: database.rows("SELECT count(*) FROM task_subscriptions") == [(2,)])
            task = order(found[1], 7)
            until(lambda: len(sentry.of("transaction")) >= 6 and sentry.of("event"))
            until(lambda: attempts(port) + attempts(port + 1) == ATTEMPTS)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0, work.read_text()
            until(lambda: any(span["kind"] == "SpanKind.SERVER" for span in spans()))

    expect_opentelemetry(spans(), task)
    expect_sentry(sentry, task)


def expect_opentelemetry(spans, task):
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{TRACE}"}
    names = {span["context"]["span_id"]: span["name"] for span in spans} | {f"0x{PARENT}": "the client"}
    assert Counter((names[span["parent_id"]], span["name"]) for span in spans) == {
        ("the client", "POST /orders"): 1,
        ("POST /orders", "send payments"): 1,
        ("send payments", "process payments"): 1,
        ("process payments", "send warehouse"): 1,
        ("process payments", "send order.paid"): 1,
        ("send warehouse", "process warehouse"): 2,
        ("send order.paid", "process ledger"): 1,
        ("send order.paid", "process mail"): 1,
    }
    of = {span["name"]: span for span in spans}
    assert of["process payments"]["attributes"]["messaging.message.id"] == task
    assert of["send warehouse"]["attributes"]["messaging.batch.message_count"] == 2
    assert of["send order.paid"]["attributes"]["messaging.batch.message_count"] == 2
    assert of["process ledger"]["status"]["status_code"] == "ERROR"
    assert of["process ledger"]["attributes"]["error.type"] == "ConnectionError"
    request, *rest = (
        {span["resource"]["attributes"]["service.instance.id"] for span in spans if span["kind"] == kind}
        for kind in ("SpanKind.SERVER", "SpanKind.CONSUMER")
    )
    assert request.isdisjoint(*rest), "the task ran in the request's process"


def expect_sentry(sentry, task):
    transactions = sentry.of("transaction")
    traces = {one["contexts"]["trace"]["trace_id"] for one in transactions}
    assert traces == {TRACE}
    names = Counter(one["transaction"] for one in transactions if one["contexts"]["trace"]["op"] != "http.server")
    assert names == {"shop.charge": 1, "shop.ship": 2, "shop.book": 1, "shop.thank": 1}
    ops = Counter(span["op"] for one in transactions for span in one["spans"] if span["op"].startswith("queue."))
    assert ops == {"queue.publish": 3, "queue.process": 5}
    [charged] = [one for one in transactions if one["transaction"] == "shop.charge"]
    assert charged["contexts"]["outboxq"]["task_id"] == task
    [error] = sentry.of("event")
    assert error["exception"]["values"][-1]["value"] == "the ledger is closed"
    assert error["tags"] == {"task": "shop.book", "queue": "ledger", "attempt": 1}
    assert error["contexts"]["trace"]["trace_id"] == TRACE
