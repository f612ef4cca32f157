"""The endpoints for webhooks in Flask, FastAPI and plain WSGI. The suite of the Django project tests Django's."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask, request
from sqlalchemy.exc import OperationalError
from werkzeug.test import Client, EnvironBuilder

from outboxq import Outbox, WebhookSource
from outboxq.contrib.fastapi import webhook_endpoint
from outboxq.contrib.flask import webhook_view
from outboxq.contrib.wsgi import webhook_application
from outboxq.task.receivers import UNREADABLE
from outboxq.webhooks import signed_headers
from tests.conftest import Database

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EVENT = b'{"specversion": "1.0", "id": "e1", "source": "erp", "type": "billing.paid", "data": 7}'
MOST = 1000

Send = Callable[..., tuple[int, str]]


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database.host)


@pytest.fixture
def erp(outbox: Outbox) -> WebhookSource:
    source = WebhookSource(name="erp.eu", secret=SECRET, max_bytes=MOST)
    outbox.receive("billing.*", source=source, name="book")(lambda payload: None)
    return source


def flask_app(outbox: Outbox, erp: WebhookSource) -> Flask:
    app = Flask("shop")
    app.add_url_rule("/hooks/erp", view_func=webhook_view(outbox, erp))
    app.add_url_rule("/hooks/crm", view_func=webhook_view(outbox, WebhookSource(name="crm", secret=SECRET)))
    return app


def by_wsgi(app) -> Send:
    client = Client(app)

    def send(body: bytes, headers: dict[str, str], method: str = "POST") -> tuple[int, str]:
        try:
            answer = client.open("/hooks/erp", method=method, data=body, headers=headers)
        except OperationalError:
            return 500, ""
        return answer.status_code, answer.text

    return send


def by_asgi(outbox: Outbox, erp: WebhookSource) -> Send:
    app = FastAPI()
    app.post("/hooks/erp")(webhook_endpoint(outbox, erp))

    def send(body: object, headers: dict[str, str], method: str = "POST") -> tuple[int, str]:
        async def request() -> tuple[int, str]:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                answer = await client.request(method, "/hooks/erp", content=body, headers=headers)
                return answer.status_code, answer.text

        return asyncio.run(request())

    return send


@pytest.fixture(params=["wsgi", "flask", "fastapi"])
def send(request: pytest.FixtureRequest, outbox: Outbox, erp: WebhookSource) -> Send:
    if request.param == "fastapi":
        return by_asgi(outbox, erp)
    return by_wsgi(webhook_application(outbox, erp) if request.param == "wsgi" else flask_app(outbox, erp))


def signed(body: bytes, id: str = "m1") -> dict[str, str]:
    return signed_headers(id, body, SECRET)


def names(outbox: Outbox) -> list[str]:
    return [task.task_name for task in outbox.store.tasks()]


def test_a_webhook_is_acknowledged_after_its_task_is_committed(send: Send, database: Database, outbox: Outbox) -> None:
    assert send(EVENT, signed(EVENT)) == (204, "")
    assert database.rows("SELECT task_name, args FROM task_executions") == [("book", '{"payload":7}')]
    assert send(EVENT, signed(EVENT)) == (204, "")
    assert names(outbox) == ["book"]


def test_a_wrong_signature_is_refused_without_a_row(send: Send, database: Database) -> None:
    assert send(EVENT + b" ", signed(EVENT)) == (401, "no signature in the webhook-signature header is valid")
    assert send(EVENT, {}) == (401, "the webhook-id header is missing")
    assert database.rows("SELECT 1 FROM task_executions UNION ALL SELECT 1 FROM inbox_messages") == []


def test_an_unreadable_webhook_is_acknowledged_and_kept(send: Send, outbox: Outbox) -> None:
    assert [send(b"{]", signed(b"{]"))[0] for _ in range(2)] == [204, 204]
    assert names(outbox) == [UNREADABLE]


def test_a_body_may_be_as_large_as_the_limit(send: Send, outbox: Outbox) -> None:
    fits = EVENT + b" " * (MOST - len(EVENT))
    assert send(fits + b" ", signed(fits + b" ")) == (413, "the body has more than 1000 bytes")
    assert names(outbox) == []
    assert send(fits, signed(fits)) == (204, "")
    assert names(outbox) == ["book"]


def test_a_body_that_flask_has_read_before_the_endpoint_is_verified(outbox: Outbox, erp: WebhookSource) -> None:
    """Otherwise an application that logs the bodies of its requests would refuse every webhook."""
    app = flask_app(outbox, erp)
    app.before_request(lambda: request.get_data() and None)
    send = by_wsgi(app)
    assert send(EVENT, signed(EVENT)) == (204, "")
    assert names(outbox) == ["book"]
    too_long = EVENT + b" " * MOST
    assert send(too_long, signed(too_long))[0] == 413


def test_another_method_is_not_allowed(send: Send, outbox: Outbox) -> None:
    assert send(b"", {}, "GET")[0] == 405
    assert send(EVENT, signed(EVENT), "PUT")[0] == 405
    assert names(outbox) == []


def test_a_database_error_does_not_accept_the_webhook(
    send: Send, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise OperationalError("INSERT", {}, Exception("gone"))

        patch.setattr("outboxq.store.messages.inbox.enqueue_many", fail)
        assert send(EVENT, signed(EVENT))[0] == 500
    assert send(EVENT, signed(EVENT))[0] == 204
    assert names(outbox) == ["book"]


def test_a_stream_is_refused_as_soon_as_it_is_too_large(outbox: Outbox, erp: WebhookSource) -> None:
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 400

    assert by_asgi(outbox, erp)(endless(), {})[0] == 413
    assert sent == 3


def test_tasks_are_enqueued_outside_the_event_loop_thread(
    outbox: Outbox, erp: WebhookSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    receive = Outbox.receive_webhook

    def seen(*arguments, **options):
        threads.append(threading.current_thread())
        return receive(*arguments, **options)

    monkeypatch.setattr(Outbox, "receive_webhook", seen)
    assert by_asgi(outbox, erp)(EVENT, signed(EVENT))[0] == 204
    assert threads != [threading.main_thread()]
    assert len(threads) == 1


class Drips(BytesIO):
    """An input that returns a few bytes on each call, as a socket may."""

    def read(self, size=-1):
        return super().read(min(size, 7))

    def readinto(self, buffer):
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("name", ["wsgi", "flask"])
def test_a_body_may_arrive_in_parts(outbox: Outbox, erp: WebhookSource, name: str, is_chunked: bool) -> None:
    app = webhook_application(outbox, erp) if name == "wsgi" else flask_app(outbox, erp)
    for body, status in ((EVENT, 204), (EVENT + b" " * MOST, 413)):
        environ = EnvironBuilder("/hooks/erp", method="POST", headers=signed(body)).get_environ()
        environ |= {"wsgi.input": Drips(body), "CONTENT_LENGTH": str(len(body))}
        if is_chunked:
            environ |= {"wsgi.input_terminated": True, "CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}
        assert answered(app, environ) == status
    assert names(outbox) == ["book"]


def answered(app, environ) -> int:
    heard: list[str] = []
    for _ in app(environ, lambda status, *_: heard.append(status)):
        pass
    return int(heard[0].split()[0])


def test_a_body_without_a_length_is_refused(outbox: Outbox, erp: WebhookSource) -> None:
    environ = EnvironBuilder("/", method="POST", headers=signed(EVENT)).get_environ()
    environ |= {"wsgi.input": BytesIO(EVENT), "CONTENT_LENGTH": "", "wsgi.input_terminated": False}
    assert answered(webhook_application(outbox, erp), environ) == 411


class Quiet(WSGIRequestHandler):
    def log_message(self, format, *args) -> None: ...


@contextmanager
def served(app) -> Iterator[http.client.HTTPConnection]:
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        try:
            yield connection
        finally:
            connection.close()
            server.shutdown()
            thread.join()


def test_a_wsgi_server_serves_the_endpoint(outbox: Outbox, erp: WebhookSource) -> None:
    with served(webhook_application(outbox, erp)) as connection:
        for headers, status in ((signed(EVENT), 204), (signed(EVENT), 204), (signed(b""), 401)):
            connection.request("POST", "/", EVENT, headers)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (status, status != 204)
    assert names(outbox) == ["book"]
