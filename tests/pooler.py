"""A pooler that lends its server connections for one transaction at a time, as PgBouncer does in transaction mode."""

from __future__ import annotations

import asyncio
import os
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass

from tests.proxy import Front, closing, reset

SSL, GSS, CANCEL = ((1234 << 16 | code).to_bytes(4, "big") for code in (5679, 5680, 5678))


@dataclass(eq=False)
class Client:
    writer: StreamWriter
    server: Server | None = None


@dataclass(eq=False)
class Server:
    writer: StreamWriter
    client: Client | None = None
    owed: int = 0
    """The number of ReadyForQuery messages still to come."""
    unfinished: bool = False
    """True if messages were sent but not yet followed by a Sync."""


class Pooler(Front):
    """A pooler for one user and one database of a server without passwords. All clients get the first client's options."""

    def __init__(self, url: str, pool_size: int) -> None:
        super().__init__(url)
        self.waiting = 0
        """The number of clients that wait for a server connection."""
        self.discarded = 0
        """The number of notifications that arrived when no client had the server connection."""
        self.servers = 0
        """The number of server connections that seem open. The pooler notices the end of one only after its backend has ended."""
        self._pool: asyncio.Queue[Server | None] = asyncio.Queue()  # None: a connection that is not open yet
        for _ in range(pool_size):
            self._pool.put_nowait(None)
        self._first = asyncio.Lock()
        self._startup = b""
        self._greeting = b""

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        client = Client(writer)
        try:
            if not await self._greet(reader, client):
                return
            while True:
                kind, message = await receive(reader)
                if kind == b"X":
                    return
                if client.server is None and kind in b"dcfH":
                    continue  # the rest of a failed COPY, or a Flush after the last answer
                server = client.server or await self._take(client)
                server.owed += kind in b"QSF"
                server.unfinished = kind in b"PBDEC" or (server.unfinished and kind != b"S")
                server.writer.write(message)
                await server.writer.drain()
        except Refused as refused:
            writer.write(refused.answer)
        finally:
            if client.server:  # in the middle of a transaction, which must end
                reset(client.server.writer)
                self._release(client.server)

    async def _greet(self, reader: StreamReader, client: Client) -> bool:
        """Answer a client as the server answered the first one."""
        while True:
            size = await reader.readexactly(4)
            startup = size + await reader.readexactly(int.from_bytes(size, "big") - 4)
            if startup[4:8] == CANCEL:  # all clients have the same key, so the statement to cancel is unknown
                return False
            if startup[4:8] not in (SSL, GSS):
                break
            client.writer.write(b"N")
        async with self._first:
            if not self._greeting:
                self._startup = startup
                self._release(await self._take(client))
        client.writer.write(self._greeting)
        return True

    async def _take(self, client: Client) -> Server:
        """Lend the client the server connection that has been idle for longest, or a new one."""
        waits = self._pool.empty()
        self.waiting += waits
        try:
            server = await self._pool.get()
        finally:
            self.waiting -= waits
        try:
            if server is None or server.writer.is_closing():
                server = await self._open()
        except BaseException:
            self._pool.put_nowait(None)
            raise
        server.client, client.server = client, server
        return server

    def _release(self, server: Server) -> None:
        """Return a server connection to the pool. A lost connection is replaced when its turn comes."""
        if server.client:
            server.client.server = server.client = None
        self._pool.put_nowait(server)

    async def _open(self) -> Server:
        reader, writer = await self._dial()
        answer = kind = b""
        try:
            writer.write(self._startup)
            while kind != b"Z":
                kind, message = await receive(reader)
                if kind == b"E":
                    raise Refused(message)
                if kind == b"R" and message[5:9] != bytes(4):
                    raise RuntimeError("the server asks for a password: this pooler has none")
                # A random key, because requests to cancel go to the pooler, not to the server.
                answer += message if kind != b"K" else message[:5] + os.urandom(len(message) - 5)
        except BaseException:
            reset(writer)
            raise
        self._greeting = self._greeting or answer
        server = Server(writer)
        self.servers += 1
        self._spawn(self._listen(server, reader))
        return server

    async def _listen(self, server: Server, reader: StreamReader) -> None:
        """Pass the server's messages to the client that has the connection."""
        async with closing(server.writer):
            try:
                while True:
                    kind, message = await receive(reader)
                    if server.client is None:
                        self.discarded += kind == b"A"
                        continue
                    client = server.client
                    client.writer.write(message)
                    if kind != b"Z":
                        await client.writer.drain()
                        continue
                    # Nothing is awaited after the write, so the client cannot start its next transaction on this connection.
                    server.owed -= 1
                    if message[5:] == b"I" and not server.owed and not server.unfinished:
                        self._release(server)
            finally:
                self.servers -= 1
                reset(server.writer)
                if server.client:
                    server.client.writer.close()
                    self._release(server)


class Refused(Exception):
    """An error that the server sent instead of a greeting."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


async def receive(reader: StreamReader) -> tuple[bytes, bytes]:
    """Return the kind of the next message, and the whole message."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
