"""A network between a client and its PostgreSQL server that tests can break."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Self

from sqlalchemy.engine import make_url

READY = b"Z\0\0\0\5"  # ReadyForQuery, the end of every answer, without its last byte


class Front(ABC):
    """A listener on 127.0.0.1 in front of a PostgreSQL server, on an event loop in a separate thread."""

    def __init__(self, url: str) -> None:
        self.connections = 0
        """The number of open connections."""
        self.accepted = 0
        """The number of connections accepted since the start, without refused ones."""
        self._upstream = make_url(url)
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)
        self._thread.start()
        self._listener = self._do(asyncio.start_server(self._take_in, "127.0.0.1", 0))
        port = self._listener.sockets[0].getsockname()[1]
        url = self._upstream.difference_update_query(["host", "hostaddr", "port"]).set(host="127.0.0.1", port=port)
        # Without encryption, even if the server offers it, because the proxy must read the traffic.
        url = url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        self.url = url.render_as_string(hide_password=False)
        """The server's URL, but through this listener."""
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._do(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def _close(self) -> None:
        # A task handles each client that asyncio has accepted. If the listener were closed or the task cancelled before the task
        # has started, the socket would stay open.
        for listening in self._listener.sockets:
            self._loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        self._listener.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await _cancel(others)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. If it raises an error, `__exit__` raises that error."""
        self._tasks.append(self._loop.create_task(work))
        return self._tasks[-1]

    def _take_in(self, reader: StreamReader, writer: StreamWriter) -> None:
        def ended(_: asyncio.Task[None]) -> None:
            self.connections -= 1
            reset(writer)  # needed if the task was cancelled before it started

        self.accepted += 1
        self.connections += 1
        self._spawn(self._connection(reader, writer)).add_done_callback(ended)

    async def _connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        async with closing(writer):
            await self._serve(reader, writer)

    @abstractmethod
    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None: ...

    async def _dial(self) -> tuple[StreamReader, StreamWriter]:
        """Connect to the server, by TCP or through a Unix socket."""
        query = self._upstream.query
        host = str(query.get("host") or self._upstream.host or "127.0.0.1")
        port = int(str(query.get("port") or self._upstream.port or 5432))
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


class Proxy(Front):
    """A proxy that passes bytes on until a test causes a fault."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._pattern: bytes | None = None

    def pause(self) -> None:
        """Stop passing anything on, even the end of a connection. New connections do not reach the server."""
        self._do(self._flow(False))

    def resume(self) -> None:
        """Pass on everything that `pause` has held back, and later traffic."""
        self._do(self._flow(True))

    def drop(self) -> None:
        """Reset all connections, on both sides."""
        self._do(_cancel(self._tasks))

    def refuse(self) -> None:
        """Reset new connections immediately, but keep the existing ones."""
        self._refusing = True

    def accept(self) -> None:
        self._refusing = False

    def cut_after(self, pattern: bytes) -> None:
        """When a client next sends `pattern`, drop the whole answer and then the connection. This happens only once."""
        self._pattern = pattern

    @property
    def armed(self) -> bool:
        """True while `cut_after` waits for its pattern."""
        return self._pattern is not None

    async def _flow(self, on: bool) -> None:
        (self._flowing.set if on else self._flowing.clear)()

    def _take_in(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._refusing:
            reset(writer)
        else:
            super()._take_in(reader, writer)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        await self._flowing.wait()
        answers, server = await self._dial()
        async with closing(server):
            cut = asyncio.Event()
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._upwards(reader, server, cut))
                    pumps.create_task(self._downwards(answers, writer, cut))
            except* (OSError, EOFError):
                pass
            if cut.is_set():
                reset(server)
                reset(writer)

    async def _upwards(self, reader: StreamReader, server: StreamWriter, cut: asyncio.Event) -> None:
        sent = b""
        while True:
            data = await self._read(reader)
            sent = (sent + data)[-len(data) - 100 :]
            # The pattern may arrive in two pieces, but must end in this one.
            if self._pattern is not None and self._pattern in sent[-len(data) - len(self._pattern) + 1 :]:
                self._pattern = None
                cut.set()
            server.write(data)
            await server.drain()

    async def _downwards(self, answers: StreamReader, writer: StreamWriter, cut: asyncio.Event) -> None:
        swallowed = b""
        while not swallowed.startswith(READY):
            data = await self._read(answers)
            if cut.is_set():
                swallowed = (swallowed + data)[-len(READY) - 1 :]
            else:
                writer.write(data)
                await writer.drain()
        raise EOFError

    async def _read(self, reader: StreamReader) -> bytes:
        """Return the next bytes, or raise EOFError at the end. Wait first if the proxy is paused."""
        try:
            data = await reader.read(1 << 16)
        except OSError:
            data = b""
        await self._flowing.wait()
        if not data:
            raise EOFError
        return data


@contextlib.asynccontextmanager
async def closing(writer: StreamWriter) -> AsyncIterator[None]:
    """Close after the last byte has been sent, or immediately on cancellation. Ignore that the other side has disconnected."""
    try:
        with contextlib.suppress(OSError, EOFError):
            yield
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()
    finally:
        reset(writer)


def reset(writer: StreamWriter) -> None:
    """Close the connection abruptly, with an RST if it uses TCP. Do nothing if it is already closed."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=1)
