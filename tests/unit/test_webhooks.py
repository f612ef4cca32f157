"""Webhooks: signatures with their times, permitted addresses, and time limits."""

from __future__ import annotations

import json
import socket
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from uuid import UUID

import pytest

from outboxq import (
    CloudEvent,
    ConfigurationError,
    EndpointGone,
    EndpointRefused,
    InvalidArgument,
    Webhook,
    WebhookFailed,
    WebhookInvalid,
    verify_webhook,
)
from outboxq.webhooks import Body, signed_headers
from tests.endpoints import LOCAL, endpoint, trusting

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
SIGNED = datetime.fromtimestamp(1614265330, UTC)
EVENT = CloudEvent(
    id=UUID("0197a1b2-0000-7000-8000-000000000000"),
    source="shop",
    type="order.paid",
    time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    data='{"order": 7, "sum": 12.50}',
    partition_key="ada",
    headers={
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "Tenant": "eu",
        "x-y": "no",
        "id": "no",
    },
)


def hook(url: str, **options: Any) -> Webhook:
    given = {"secret": SECRET, "allowed_networks": LOCAL, "allow_http": True, **options}
    return Webhook(url=url, **given)


# --- The event


def test_an_event_is_a_cloudevent_with_its_payload_unchanged() -> None:
    assert EVENT.as_json().endswith(',"data":{"order": 7, "sum": 12.50}}')
    assert json.loads(EVENT.as_json()) == {
        "specversion": "1.0",
        "id": "0197a1b2-0000-7000-8000-000000000000",
        "source": "shop",
        "type": "order.paid",
        "time": "2026-01-02T03:04:05.000000Z",
        "datacontenttype": "application/json",
        "partitionkey": "ada",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tenant": "eu",
        "data": {"order": 7, "sum": 12.5},
    }


# --- Signatures


def test_a_signature_matches_the_example_of_the_standard() -> None:
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', SECRET, now=SIGNED)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("sender", [SECRET, OTHER, [OTHER, SECRET]])
@pytest.mark.parametrize("receiver", [SECRET, [SECRET, OTHER]])
def test_while_a_secret_is_rotated_old_and_new_are_valid(sender: str | list[str], receiver: str | list[str]) -> None:
    headers = {name.title(): value for name, value in signed_headers("m1", b"{}", sender, now=SIGNED).items()}
    if sender == OTHER and receiver == SECRET:
        with pytest.raises(WebhookInvalid, match="no signature"):
            verify_webhook(headers, b"{}", receiver, now=SIGNED)
        return
    found = verify_webhook(headers, b"{}", receiver, now=SIGNED)
    assert (found.id, found.timestamp, found.body) == ("m1", SIGNED, b"{}")


@pytest.mark.parametrize(
    ("changed", "body", "complaint"),
    [
        ({}, b"{ }", "no signature"),
        ({"webhook-id": "m2"}, b"{}", "no signature"),
        ({"webhook-id": ""}, b"{}", "the webhook-id header is missing"),
        ({"webhook-timestamp": "1614265331"}, b"{}", "no signature"),
        ({"webhook-timestamp": "now"}, b"{}", "not a number of seconds"),
        ({"webhook-timestamp": "9" * 400}, b"{}", "not a number of seconds"),
        ({"webhook-signature": "v1,\udcff v1, \N{SNOWMAN}"}, b"{}", "no signature"),
        ({"webhook-signature": "v1"}, b"{}", "no signature"),
    ],
)
def test_a_webhook_that_was_changed_is_refused(changed: dict[str, str], body: bytes, complaint: str) -> None:
    headers = signed_headers("m1", b"{}", SECRET, now=SIGNED) | changed
    with pytest.raises(WebhookInvalid, match=complaint):
        verify_webhook(headers, body, SECRET, now=SIGNED)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_webhook_that_was_signed_too_long_ago_is_refused(sign: int) -> None:
    headers = signed_headers("m1", b"{}", SECRET, now=SIGNED)
    verify_webhook(headers, b"{}", SECRET, now=SIGNED + sign * timedelta(minutes=5))
    with pytest.raises(WebhookInvalid, match="too long ago, or the clocks differ"):
        verify_webhook(headers, b"{}", SECRET, now=SIGNED + sign * timedelta(minutes=5, seconds=1))
    with pytest.raises(WebhookInvalid, match="too long ago"):
        verify_webhook(headers, b"{}", SECRET, tolerance=10, now=SIGNED + sign * timedelta(seconds=11))


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_not base64!", f"{SECRET}{'A' * 60}", 7, [], [SECRET, ""]]
)
def test_a_secret_that_is_malformed_is_refused_and_not_shown(secret: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Webhook(url="https://crm.example/hooks", secret=secret)
    assert "c2hvcnQ" not in str(refused.value)
    assert "not base64" not in str(refused.value)


# --- Sending


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_sent_event_is_signed(tls: bool) -> None:
    with endpoint(tls=tls) as other:
        hook(other.url("/hooks?shop=7"), tls=trusting(), secret=[OTHER, SECRET]).send(EVENT)
        [arrival] = other.arrivals
    assert arrival.path == "/hooks?shop=7"
    assert arrival.body == EVENT.as_json().encode()
    assert arrival.headers["host"] == f"localhost:{other.port}"
    assert arrival.headers["content-type"] == "application/cloudevents+json"
    assert arrival.headers["traceparent"] == EVENT.headers["traceparent"]
    for secret in (SECRET, OTHER):
        assert verify_webhook(arrival.headers, arrival.body, secret).id == str(EVENT.id)


def test_the_body_may_be_the_payload_alone() -> None:
    with endpoint() as other:
        hook(other.url(), body=Body.PAYLOAD).send(EVENT)
        [arrival] = other.arrivals
    assert arrival.body == EVENT.data.encode()
    assert arrival.headers["content-type"] == "application/json"
    assert verify_webhook(arrival.headers, arrival.body, SECRET).id == str(EVENT.id)


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 500, 503])
def test_any_status_but_success_is_a_failure(status: int) -> None:
    """A redirect is not followed, whether it leads inside the network or not."""
    with endpoint() as inside, endpoint((status, {"location": inside.url()})) as other:
        with pytest.raises(WebhookFailed, match=f"the endpoint of the webhook to localhost answered {status}$"):
            hook(other.url()).send(EVENT)
        assert (len(other.arrivals), inside.arrivals) == (1, [])


@pytest.mark.parametrize(
    ("after", "wait"),
    [
        ("120", timedelta(seconds=120)),
        ("9" * 50, timedelta(days=1)),
        (format_datetime(datetime(2000, 1, 1, tzinfo=UTC), usegmt=True), timedelta(0)),
        (format_datetime(datetime(2900, 1, 1, tzinfo=UTC), usegmt=True), timedelta(days=1)),
        ("Sat, 01 Jan 2000 00:00:00", timedelta(0)),
    ],
)
def test_the_retry_after_header_sets_the_delay(after: str, wait: timedelta) -> None:
    with (
        endpoint((503, {"retry-after": after})) as other,
        pytest.raises(WebhookFailed, match="answered 503$") as failed,
    ):
        hook(other.url()).send(EVENT)
    assert failed.value.retry_after == wait


@pytest.mark.parametrize("after", ["soon", "", "-1", "1.5"])
def test_a_retry_after_that_cannot_be_read_is_ignored(after: str) -> None:
    with (
        endpoint((503, {"retry-after": after})) as other,
        pytest.raises(WebhookFailed, match="answered 503$") as failed,
    ):
        hook(other.url()).send(EVENT)
    assert failed.value.retry_after is None


def test_a_410_response_raises_endpoint_gone() -> None:
    with endpoint((410, {})) as other, pytest.raises(EndpointGone, match="answered 410: it no longer exists"):
        hook(other.url()).send(EVENT)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_an_endpoint_that_answers_one_byte_at_a_time_is_cut_off(tls: bool) -> None:
    over = threading.Event()

    def drip(handler: Any) -> None:
        for _ in range(2_000):  # an upper limit, for the mutant that never stops reading
            if over.wait(0.01):
                return
            handler.wfile.write(b"H")

    with endpoint(tls=tls) as other:
        other.on_request = drip
        try:
            with pytest.raises(WebhookFailed, match="TimeoutError: the endpoint did not answer in time"):
                hook(other.url(), timeout=0.3, tls=trusting()).send(EVENT)
        finally:
            over.set()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_endpoint_that_accepts_but_never_answers_causes_a_timeout(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(WebhookFailed, match="TimeoutError"):
            hook(url, timeout=0.2, tls=trusting()).send(EVENT)


def test_an_endpoint_that_is_down_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(WebhookFailed, match="cannot be delivered: ConnectionRefusedError"):
        hook(f"http://127.0.0.1:{port}/").send(EVENT)


def test_a_certificate_that_is_not_trusted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate must come from a known authority and be valid for the host."""
    with endpoint(tls=True) as other:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", other.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
        for host, tls in (("localhost", None), ("another.example", trusting())):
            url = other.url(host=host)
            with pytest.raises(WebhookFailed, match="SSLCertVerificationError"):
                hook(url, tls=tls).send(EVENT)
        assert other.arrivals == []


# --- Permitted addresses

INSIDE = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1%eth0",
    "fc00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
    "192.0.0.192",
    "168.63.129.16",
    "64:ff9b:1::a9fe:a9fe",
    "fec0::1",
    "::ffff:0:7f00:1",
    "::7f00:1",
]


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_the_network_is_refused_after_the_name_is_resolved(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One inside address is enough for a refusal, because the connection could use that address."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 443)) for one in ("93.184.216.34", address)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("the webhook would connect"))
    with pytest.raises(EndpointRefused, match="is not a public address; if that is intended, name its network"):
        Webhook(url="https://crm.example/hooks", secret=SECRET).send(EVENT)


def test_the_name_is_resolved_once_so_that_its_address_cannot_change_after_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with endpoint(tls=True) as other:
        asked: list[str] = []

        def resolve(host: str, port: int, **_: object) -> list[Any]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        hook(other.url(host="crm.example"), tls=trusting()).send(EVENT)
        assert (asked, other.arrivals[0].headers["host"]) == (["crm.example"], f"crm.example:{other.port}")


def test_the_first_address_that_answers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint() as other, socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
        free.close()
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in (closed, other.port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
        hook(other.url()).send(EVENT)
        assert len(other.arrivals) == 1


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        (
            {"url": "http://crm.example/"},
            ConfigurationError,
            "does not use encryption; use https, or set allow_http=True",
        ),
        ({"url": "https://ada:lovelace@crm.example/"}, ConfigurationError, "contains a user name or a password"),
        ({"url": "ftp://crm.example/"}, ConfigurationError, "a webhook needs a URL such as"),
        ({"url": "https:///hooks"}, ConfigurationError, "a webhook needs a URL such as"),
        ({"url": "https://crm.example/love lace"}, ConfigurationError, "in ASCII and without spaces"),
        ({"url": "https://crm.example/lovelacé"}, ConfigurationError, "in ASCII and without spaces"),
        ({"url": "https://crm.example/\r\nlovelace"}, ConfigurationError, "in ASCII and without spaces"),
        ({"url": "https://crm.example:lovelace/"}, ConfigurationError, "a webhook needs a URL such as"),
        ({"url": "https://[lovelace/"}, ConfigurationError, "a webhook needs a URL such as"),
        ({"url": None}, ConfigurationError, "a webhook needs a URL such as"),
        ({"timeout": 0}, InvalidArgument, "must be greater than zero"),
        ({"body": "xml"}, InvalidArgument, "must be one of cloudevent, payload, not 'xml'"),
        ({"allowed_networks": ["10.1.0.1/16"]}, InvalidArgument, "accepts networks such as '10.1.0.0/16'"),
    ],
)
def test_a_webhook_with_invalid_options_is_refused(
    options: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint) as refused:
        Webhook(**{"url": "https://crm.example/hooks", "secret": SECRET, **options})
    assert "lovelace" not in str(refused.value)


def test_neither_the_secret_nor_the_path_is_shown() -> None:
    """The path of a URL may be a secret, as in a chat's webhook."""
    with endpoint((500, {})) as other:
        made = hook(other.url("/T00/B00/XXXX?token=t0ken"))
        with pytest.raises(WebhookFailed) as failed:
            made.send(EVENT)
    found = verify_webhook(signed_headers("m", b"body-bytes", SECRET), b"body-bytes", SECRET)
    for shown in (repr(made), str(made), str(failed.value), repr(failed.value), repr(EVENT), repr(found)):
        for hidden in ("XXXX", "t0ken", "MfKQ9r8G", "12.50", "body-bytes"):
            assert hidden not in shown
