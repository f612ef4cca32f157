"""Scrapes of `/metrics`, and ports to serve it on."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def free_ports(number: int) -> int:
    """Return the first of `number` consecutive ports that were free a moment ago.

    They lie below the ports that systems assign to clients, because a connection could take such a port before the test does.
    """
    while True:
        first = random.SystemRandom().randint(15_000, 30_000)  # independent of a test's seed
        with suppress(OSError):
            for port in range(first, first + number):
                socket.create_server(("127.0.0.1", port)).close()
            return first


def taken() -> socket.socket:
    """Return a socket that listens on some port."""
    return socket.create_server(("127.0.0.1", 0))


def scrape(port: int) -> dict[str, dict[frozenset, float]]:
    """Return each sample's value by its name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return read(answer.read().decode())


def read(text: str) -> dict[str, dict[frozenset, float]]:
    found: dict[str, dict[frozenset, float]] = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            found.setdefault(name, {})[frozenset(labels.items())] = value
    return found


def labels(**given: str) -> frozenset:
    return frozenset(given.items())
