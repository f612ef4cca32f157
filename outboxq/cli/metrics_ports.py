"""The ports of `--metrics-port` when several processes run: one for each, counted up."""

from __future__ import annotations

import socket

import click

from ..worker.options import LAST_PORT
from .console import EXIT_USAGE, fail


def port_of(number: int, first: int | None) -> int | None:
    """Return the port of the worker process with this number, from 1. None: it has none. 0: any free one."""
    return first + number - 1 if first else first


def ensure_free(host: str, first: int | None, processes: int) -> None:
    """Refuse ports that are taken, before any of the processes starts. Each process opens its own port later."""
    if not first:
        return
    last = first + processes - 1
    if last > LAST_PORT:
        raise click.UsageError(
            f"--metrics-port {first} with {processes} processes ends at port {last}; choose one up to "
            f"{LAST_PORT - processes + 1}"
        )
    for port in range(first, last + 1):
        try:
            [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            with socket.socket(family, kind, protocol) as found:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                found.bind(address)
                found.listen()
        except OSError as error:
            fail(
                f"no metrics can be served on {host} port {port}: {error.strerror or error}; free that port or choose "
                "others with --metrics-port",
                EXIT_USAGE,
            )
