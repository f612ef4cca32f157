"""Run both services until Ctrl+C, with a RabbitMQ server unless RABBITMQ_URL is set or one is running here."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pika

OUTBOXQ, FLASK = [sys.executable, "-m", "outboxq"], [sys.executable, "-m", "flask", "--app", "shop"]
PORT = os.environ.get("SHOP_PORT", "5000")
started = []


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run_rabbitmq():
    scripts = sorted(Path("/usr/lib/rabbitmq/lib").glob("*/sbin/rabbitmq-server"))  # Debian's wrapper needs root
    server = scripts[-1] if scripts else shutil.which("rabbitmq-server")
    if server is None:
        sys.exit("RabbitMQ is not installed: apt install rabbitmq-server, or set RABBITMQ_URL")
    home = Path("rabbitmq").absolute()
    home.mkdir(exist_ok=True)
    (home / "plugins").write_text("[].\n")
    places = {name: str(home) for name in ("HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE")}
    files = {"RABBITMQ_PID_FILE": str(home / "pid"), "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins")}
    names = {"RABBITMQ_NODENAME": "two_services@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1"}
    environment = os.environ | places | files | names | {"ERL_EPMD_ADDRESS": "127.0.0.1"}
    if not listens(4369):  # Erlang would start it, and leave it running
        started.append(subprocess.Popen(["epmd"], env=environment, start_new_session=True))
    with (home / "output.log").open("wb") as log:
        started.append(subprocess.Popen([server], env=environment, stdout=log, stderr=log, start_new_session=True))


def create_queues(url):
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = pika.BlockingConnection(pika.URLParameters(url))
            break
        except pika.exceptions.AMQPConnectionError:  # a new broker needs a few seconds
            if time.monotonic() > deadline:
                sys.exit("RabbitMQ does not answer: check RABBITMQ_URL, or read rabbitmq/output.log")
            time.sleep(0.5)
    with connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_declare("billing", durable=True)
        channel.queue_bind("billing", "shop", "order.#")


signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    if "RABBITMQ_URL" not in os.environ and not listens(5672):
        run_rabbitmq()
    create_queues(os.environ.get("RABBITMQ_URL", "amqp://localhost/"))
    for command in ([*FLASK, "outboxq", "upgrade"], [*OUTBOXQ, "upgrade", "billing:outbox"]):
        subprocess.run(command, check=True)
    shop = ([*FLASK, "run", "--port", PORT], [*FLASK, "outboxq", "worker"])  # this worker publishes the events
    for command in (*shop, [*OUTBOXQ, "worker", "billing:outbox"]):  # and this one receives them
        started.append(subprocess.Popen(command, start_new_session=True))
    print(f"http://localhost:{PORT}/orders is ready; stop with Ctrl+C", flush=True)
    while all(one.poll() is None for one in started):
        time.sleep(0.2)
    sys.exit("a process has ended, and the others are stopped")
except KeyboardInterrupt:
    pass
finally:
    for one in reversed(started):  # the broker after its clients
        one.terminate()
        one.wait()
