"""What open tabs cost the server: ten of them under 2 % of a core, while nothing happens and while tasks flow.

`-s` prints the figures. The server is a process of its own, so its processor time is all theirs.
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
MOST = 0.02
"""The share of a core that so many tabs may cost."""
RATE = 20
"""Tasks a second, where tasks flow."""


def processor_seconds(pid: int) -> float:
    """The processor time that a process has used so far, as Linux counts it."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(url):
    """The process of a server, and its address."""
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
    """Call this so often in a thread meanwhile."""
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


def tab(address, path, answers, delay, until):
    """Ask as a tab does: for the same page again and again, and whether it has changed."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    tag, cookies, due = None, SimpleCookie(), time.monotonic() + delay
    while due < until:
        time.sleep(max(0.0, due - time.monotonic()))
        kept = "; ".join(f"{name}={one.value}" for name, one in cookies.items())
        headers = {"HX-Request": "true", **({"If-None-Match": tag, "Cookie": kept} if tag else {})}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        for one in answer.headers.get_all("Set-Cookie", []):
            cookies.load(one)
        answers[answer.status] += 1
        tag, due = answer.headers.get("ETag"), due + EVERY
    connection.close()


def tabs(address, paths):
    """Keep a tab open at each path; returns the number of answers by their status."""
    answers, until = Counter(), time.monotonic() + SECONDS
    threads = [
        threading.Thread(target=tab, args=(address, path, answers, number * EVERY / len(paths), until))
        for number, path in enumerate(paths)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(answers)


def flow(store, worker):
    """One task from its enqueueing to its end."""

    def one():
        writer.enqueue(RECEIPT, queue="flow")
        claims = store.claim_ready_task(1, worker_id=worker, queues=["flow"])
        store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])

    writer = Writer(store.bound_engine, store.now())
    writer.store = store
    return one


def cost(pid, run):
    """The share of a core that a process used while this ran, and what that returned."""
    before, began = processor_seconds(pid), time.monotonic()
    found = run()
    return (processor_seconds(pid) - before) / (time.monotonic() - began), found


@pytest.mark.parametrize("flows", [False, True], ids=["idle", "flowing"])
def test_ten_tabs_cost_less_than_2_percent_of_a_core(database, flows):
    filling = fill(database.engine)
    paths = [address(page, filling) for page in PAGES][:TABS]
    with server(database.url) as (pid, at), every(15, filling.beat):
        tabs_once(at, paths)
        if flows:
            with every(1 / RATE, flow(database.store, filling.workers["new"])):
                share, answers = cost(pid, lambda: tabs(at, paths))
        else:
            share, answers = cost(pid, lambda: tabs(at, paths))
    print(f"{database.name}, {'flowing' if flows else 'idle'}: {share:.2%} of a core, {answers}")
    assert set(answers) <= {200, 304}
    assert flows or answers[304] > answers[200]
    assert share < MOST


def tabs_once(address, paths):
    """Ask for each page once, so that everything is imported, compiled and looked up."""
    for path in paths:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()


@pytest.mark.parametrize("flows", [False, True], ids=["idle", "flowing"])
def test_ten_real_tabs_cost_less_than_2_percent_of_a_core(open_tab, postgresql, flows):
    filling = fill(postgresql.engine)
    paths = [address(page, filling) for page in PAGES][:TABS]
    with server(postgresql.url) as (pid, at), every(15, filling.beat):
        opened = [open_tab(at) for _ in paths]
        for one, path in zip(opened, paths, strict=True):
            one.open(path)
        asked = sum(len(one.requests) for one in opened)

        def wait():
            for _ in range(SECONDS):
                opened[0].page.wait_for_timeout(1000)

        if flows:
            with every(1 / RATE, flow(postgresql.store, filling.workers["new"])):
                share, _ = cost(pid, wait)
        else:
            share, _ = cost(pid, wait)
        asked = sum(len(one.requests) for one in opened) - asked
        wrong = [problem for one in opened for problem in one.problems]
    print(f"real tabs, {'flowing' if flows else 'idle'}: {share:.2%} of a core, {asked} requests")
    assert not wrong
    assert asked >= len(paths) * (SECONDS / EVERY - 2)
    assert share < MOST
