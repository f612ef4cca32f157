"""The load of ten open tabs on the server: under 1.5 % of a core if nothing happens, and under 5 % if tasks run.

`-s` prints the figures. The server is a separate process, so all its processor time is caused by the tabs.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from outboxq.model import EventType, Outcome
from tests.integrations.dashboard.filling import Writer, fill
from tests.integrations.dashboard.pages import PAGES, address
from tests.integrations.dashboard.shop import RECEIPT

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
SECONDS, TABS, EVERY = 60, 10, 5.0
MOST = {"idle": 0.015, "flowing": 0.05}
"""The share of a core that the tabs may use. Each request takes longer on a machine that is also doing other work."""
RATE = 20
"""Tasks per second in the state `flowing`."""


def processor_seconds(pid: int) -> float:
    """The processor time that a process has used so far, as Linux counts it."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(url):
    """Start a server in a separate process; yield its process id and its address."""
    command = [sys.executable, "-m", "tests.integrations.dashboard.server", url]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


@contextmanager
def every(seconds, call):
    """Call a function at this interval in a thread, until the block ends."""
    stop = threading.Event()

    def run():
        while not stop.wait(seconds):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def tab(address, path, opened, answers, delay, until):
    """Ask repeatedly whether an open page has changed, as its tab does."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    (tag, cookies), due = opened, time.monotonic() + delay
    while due < until:
        time.sleep(max(0.0, due - time.monotonic()))
        headers = {"HX-Request": "true", "If-None-Match": tag, "Cookie": cookies}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        answers[answer.status] += 1
        tag, due = answer.headers.get("ETag"), due + EVERY
    connection.close()


def tabs(address, opened):
    """Keep these tabs open; return the number of responses by status."""
    answers, until = Counter(), time.monotonic() + SECONDS
    threads = [
        threading.Thread(target=tab, args=(address, path, found, answers, number * EVERY / len(opened), until))
        for number, (path, found) in enumerate(opened.items())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(answers)


def see_all(filling):
    """Record each worker as seen, so that none becomes silent during the test, which would change each page."""
    for worker in filling.workers.values():
        filling.outbox.store.workers.seen(worker)


def flow(store, worker):
    """Return a function that enqueues one task and completes it."""

    def one():
        writer.enqueue(RECEIPT, queue="flow")
        claims = store.claim_ready_task(1, worker_id=worker, queues=["flow"])
        store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])

    writer = Writer(store.bound_engine, store.now())
    writer.store = store
    return one


def cost(pid, run):
    """The share of a core that a process used during a call, and the result of the call."""
    before, began = processor_seconds(pid), time.monotonic()
    found = run()
    return (processor_seconds(pid) - before) / (time.monotonic() - began), found


@pytest.mark.parametrize("state", MOST)
def test_ten_simulated_tabs_cause_low_load(database, state):
    filling = fill(database.engine)
    paths = [address(page, filling) for page in PAGES][:TABS]
    see_all(filling)
    with server(database.url) as (pid, at), every(15, filling.beat):
        opened = {path: opened_tab(at, path) for path in paths}
        if state == "flowing":
            with every(1 / RATE, flow(database.store, filling.workers["new"])):
                share, answers = cost(pid, lambda: tabs(at, opened))
        else:
            share, answers = cost(pid, lambda: tabs(at, opened))
    print(f"{database.name}, {state}: {share:.2%} of a core, {answers}")
    assert set(answers) <= {200, 304}
    assert state == "flowing" or answers[304] > answers[200]
    assert share < MOST[state]


def opened_tab(address, path):
    """Open a page, so that everything it needs is imported and compiled; return its ETag and its cookies."""
    connection, cookies = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30), SimpleCookie()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    for one in answer.headers.get_all("Set-Cookie", []):
        cookies.load(one)
    kept = "; ".join(f"{name}={one.value}" for name, one in cookies.items())
    return answer.headers["ETag"], kept


@pytest.mark.parametrize("state", MOST)
def test_ten_real_tabs_cause_low_load(open_tab, postgresql, state):
    filling = fill(postgresql.engine)
    paths = [address(page, filling) for page in PAGES][:TABS]
    see_all(filling)
    with server(postgresql.url) as (pid, at), every(15, filling.beat):
        opened = [open_tab(at) for _ in paths]
        for one, path in zip(opened, paths, strict=True):
            one.open(path)
        asked = sum(len(one.requests) for one in opened)

        def wait():
            for _ in range(SECONDS):
                opened[0].page.wait_for_timeout(1000)

        if state == "flowing":
            with every(1 / RATE, flow(postgresql.store, filling.workers["new"])):
                share, _ = cost(pid, wait)
        else:
            share, _ = cost(pid, wait)
        asked = sum(len(one.requests) for one in opened) - asked
        wrong = [problem for one in opened for problem in one.problems]
    print(f"real tabs, {state}: {share:.2%} of a core, {asked} requests")
    assert not wrong
    assert asked >= len(paths) * (SECONDS / EVERY - 2)
    assert share < MOST[state]
