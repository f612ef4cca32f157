"""Attacks on the dashboard, through a real server."""

from __future__ import annotations

import http.client
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from outboxq import Outbox
from outboxq.errors import ConfigurationError
from outboxq.web import Viewer, access, answers, application, browser, dashboard
from outboxq.web.pages import ROUTES, Route
from outboxq.web.request import Redirect, View
from tests.integrations.dashboard.serving import Site
from tests.integrations.dashboard.visitor import FORM, Visitor

TOKEN = "correct horse battery staple"


@pytest.fixture
def acted(monkeypatch):
    """The viewer and the form of each call of an action, whose form is on the page /probe."""
    calls = []

    def act(request):
        calls.append((request.viewer, dict(request.form)))
        return Redirect(url=request.url("overview"), notice=request.form.get("notice", "done"))

    def probe(request):
        values = {"action": request.url("act"), "next": "/", "is_wrong": False}
        return View(template="login.html", title="Probe", values=values, data={"viewer": request.viewer.name})

    def fail(request):
        raise RuntimeError("the password is hunter2")

    routes = (
        *ROUTES,
        Route(name="act", path="/act", answer=act, is_action=True),
        Route(name="probe", path="/probe", answer=probe),
        Route(name="fail", path="/fail", answer=fail),
    )
    for module in (answers, dashboard):
        monkeypatch.setattr(module, "ROUTES", routes)
    return calls


@pytest.fixture
def serve(acted, sqlite_url):
    """Serve a dashboard with these options, and return a browser at it."""
    outbox = Outbox(sqlite_url)
    sites = []

    def served(*, around=lambda wsgi: wsgi, **options):
        sites.append(Site(around(application(outbox, **options))))
        return Visitor(sites[-1].port)

    yield served
    for site in sites:
        site.close()
    outbox.store.bound_engine.dispose()


def from_address(address, **environ):
    """Make requests appear to come from this address."""

    def around(wsgi):
        return lambda given, start: wsgi({**given, "REMOTE_ADDR": address, **environ}, start)

    return around


def act(visitor, fields=None, **headers):
    token = visitor.get("/probe").csrf
    return visitor.post("/act", {"csrf": token, **(fields or {})}, **headers)


# Forms on other sites


def test_a_form_of_the_dashboard_is_accepted(serve, acted):
    assert act(serve(allow_actions=True)).status == 303
    assert len(acted) == 1


def test_a_form_without_its_token_is_refused(serve, acted):
    visitor = serve(allow_actions=True)
    token = visitor.get("/probe").csrf
    for fields in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": token[:-1]}, {"csrf": token.upper() + " "}):
        assert visitor.post("/act", fields).status == 403
    assert not acted


def test_a_form_with_the_token_of_another_browser_is_refused(serve, acted):
    visitor = serve(allow_actions=True)
    foreign = Visitor(visitor.port).get("/probe").csrf
    visitor.get("/probe")
    assert visitor.post("/act", {"csrf": foreign}).status == 403
    assert not acted


def test_a_form_without_the_cookie_is_refused(serve, acted):
    visitor = serve(allow_actions=True)
    token = visitor.get("/probe").csrf
    visitor.cookies.clear()
    assert visitor.post("/act", {"csrf": token}).status == 403
    assert not acted


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"},
    ],
    ids=lambda headers: " ".join(map(": ".join, headers.items())) or "none",
)
def test_a_form_from_another_site_is_refused(serve, acted, headers):
    assert act(serve(allow_actions=True), **headers).status == 403
    assert not acted


def test_a_form_from_the_same_origin_is_accepted(serve, acted):
    visitor = serve(allow_actions=True)
    origin = f"http://127.0.0.1:{visitor.port}"
    assert act(visitor, **{"Sec-Fetch-Site": "same-origin", "Origin": "null"}).status == 303
    assert act(visitor, Origin=origin).status == 303
    assert len(acted) == 2


def test_a_form_must_be_posted_as_urlencoded_fields(serve, acted):
    visitor = serve(allow_actions=True)
    token = visitor.get("/probe").csrf
    for kind in ("text/plain", "application/json", "multipart/form-data; boundary=x", ""):
        assert visitor.ask("POST", "/act", body=f"csrf={token}", headers={"Content-Type": kind}).status == 415
    assert visitor.get(f"/act?csrf={token}").status == 405
    assert visitor.post("/probe", {"csrf": token}).status == 405
    assert not acted


def test_a_form_of_another_person_in_the_same_browser_is_refused(serve, acted):
    who = ["ann"]
    visitor = serve(authorize=lambda environ: Viewer(name=who[0], may_act=True), allow_actions=True)
    token = visitor.get("/probe").csrf
    who[0] = "ben"
    assert visitor.post("/act", {"csrf": token}).status == 403
    assert not acted


# Permissions


@pytest.mark.parametrize("may_act", [True, False])
@pytest.mark.parametrize("allow_actions", [True, False])
def test_an_action_must_be_allowed_for_the_dashboard_and_the_viewer(serve, acted, allow_actions, may_act):
    visitor = serve(
        authorize=lambda environ: Viewer(name="ann", may_act=may_act, may_see_arguments=True),
        allow_actions=allow_actions,
    )
    status = act(visitor).status
    assert (status == 303) == (allow_actions and may_act) == bool(acted)
    assert all(not viewer.may_see_arguments for viewer, _ in acted)


@pytest.mark.parametrize(
    ("answer", "status"), [("write", 303), ("read", 403), (None, 403), ("admin", 500), (True, 500)]
)
def test_authorize_decides_about_access(serve, acted, answer, status):
    visitor = serve(authorize=lambda environ: answer, allow_actions=True)
    page = visitor.get("/probe")
    got = visitor.post("/act", {"csrf": page.csrf}).status if page.status == 200 else page.status
    assert got == status
    assert bool(acted) == (answer == "write")


def test_a_refused_visitor_is_not_sent_from_the_overview_to_the_overview(serve):
    visitor = serve(authorize=lambda environ: None)
    pages = {path: visitor.get(path) for path in ("/", "/tasks")}
    assert [page.status for page in pages.values()] == [403, 403]
    assert "Go to the overview" not in pages["/"].text
    assert "Go to the overview" in pages["/tasks"].text


def test_an_invalid_return_value_of_authorize_is_logged_but_not_shown(serve, caplog):
    answer = serve(authorize=lambda environ: {"session": "hunter2"}).get("/")
    assert answer.status == 500
    assert "hunter2" not in answer.text
    assert "authorize returned {'session': 'hunter2'}" in caplog.text


def test_without_a_login_other_machines_are_refused(serve):
    visitor = serve(around=from_address("10.1.2.3"))
    answer = visitor.get("/")
    assert answer.status == 403
    assert "--token-file" in answer.text
    assert visitor.get("/api/overview.json").status == visitor.get("/metrics").status == 403
    assert visitor.get("/healthz?deep=1").status == 403
    assert visitor.get("/healthz").status == 200


@pytest.mark.parametrize("address", ["::1", "::ffff:127.0.0.1", "127.8.9.1"])
def test_every_loopback_address_counts_as_local(serve, address):
    assert serve(around=from_address(address)).get("/").status == 200


@pytest.mark.parametrize("address", ["", "::ffff:10.1.2.3", "0.0.0.0", "fe80::1%eth0", "nonsense"])
def test_an_address_that_is_not_a_loopback_address_is_refused(serve, address):
    assert serve(around=from_address(address)).get("/").status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-Host": "localhost"},
        {"X-Forwarded-Proto": "http"},
        {"X-Real-IP": "127.0.0.1"},
        {"X-Forwarded-Port": "80"},
        {"X-Forwarded-User": "ann"},
        {"X-Client-IP": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"Via": "1.1 proxy"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_request_through_a_local_proxy_does_not_count_as_local(serve, headers):
    # waitress removes some of these headers by default; `outboxq web` tells it not to.
    wsgi = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
    assert serve(around=from_address("127.0.0.1", **wsgi)).get("/").status == 403


def test_a_request_through_nginx_with_default_settings_is_not_local(serve):
    assert serve(around=from_address("127.0.0.1", SERVER_PROTOCOL="HTTP/1.0")).get("/").status == 403


# Other names for this host


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:80", "10.0.0.1"]
)
def test_a_request_with_an_untrusted_host_name_is_refused(serve, host):
    assert serve().get("/", Host=host).status in {400, 403}
    visitor = serve(token=TOKEN, trusted_hosts=["tasks.example.org"])
    assert visitor.get("/login", Host=host).status == (200 if host == "10.0.0.1" else 400)


@pytest.mark.parametrize(
    "host", ["tasks.example.org", "TASKS.example.org:8080", "tasks.example.org.", "localhost", "[::1]:80"]
)
def test_a_request_with_a_trusted_host_is_served(serve, host):
    assert serve(token=TOKEN, trusted_hosts=["Tasks.example.org"]).get("/login", Host=host).status == 200


@pytest.mark.parametrize("host", ["a b", "a/b", "a@b", 'x"y', "[::1", "a:b:c", "-", "…".encode().decode("latin-1")])
def test_an_invalid_host_header_is_refused(serve, host):
    assert serve(token=TOKEN).get("/login", Host=host).status == 400


# Logging in


@pytest.fixture
def fresh_tries(monkeypatch):
    """The clock of the login tries."""
    now = [1000.0]
    made = access.LoginTries
    monkeypatch.setattr(access, "LoginTries", lambda: made(lambda: now[0]))
    return now


def test_a_person_logs_in_and_out(serve, acted):
    visitor = serve(token=TOKEN, allow_actions=True)
    first = visitor.get("/probe?a=b%20c&d=%2F%2F")
    assert first.status == 303
    assert first.location == "/login?next=/probe?a%3Db%2Bc%26d%3D%252F%252F"
    answer = visitor.log_in(TOKEN, next="/probe?a=b")
    assert (answer.status, answer.location) == (303, "/probe?a=b")
    assert act(visitor).status == 303
    page = visitor.get("/")
    session = dict(visitor.cookies)
    assert visitor.post("/log-out", {"csrf": page.csrf}).location == "/login"
    assert visitor.get("/").status == 303
    visitor.cookies = session
    assert visitor.get("/").status == 303, "the session is over, even for a client that kept its cookie"


def test_a_wrong_token_is_refused(serve):
    visitor = serve(token=TOKEN)
    for wrong in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü"):
        assert visitor.log_in(wrong).status == 403
    assert visitor.get("/").status == 303


def test_the_number_of_wrong_tokens_is_limited(serve, fresh_tries):
    visitor = serve(token=TOKEN)
    assert [visitor.log_in("wrong").status for _ in range(6)] == [403] * 5 + [429]
    refused = visitor.log_in("wrong")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert visitor.get("/api/overview.json", Authorization="Bearer wrong").status == 429
    fresh_tries[0] += 61
    assert visitor.log_in("wrong").status == 403


def test_the_right_token_is_not_refused_because_of_wrong_ones(serve, fresh_tries):
    visitor = serve(token=TOKEN)
    bearer = [visitor.get("/api/overview.json", Authorization="Bearer wrong").status for _ in range(6)]
    assert bearer == [403] * 5 + [429]
    assert visitor.get("/api/overview.json", Authorization=f"Bearer {TOKEN}").status == 200
    assert visitor.log_in(TOKEN).status == 303


def test_simultaneous_wrong_tokens_are_limited(serve, fresh_tries):
    visitor = serve(token=TOKEN)
    page = visitor.get("/login")
    with ThreadPoolExecutor(20) as threads:
        tries = [
            threads.submit(
                Visitor(visitor.port, cookies=dict(visitor.cookies)).post,
                "/login",
                {"csrf": page.csrf, "token": f"{n}"},
            )
            for n in range(40)
        ]
        statuses = [one.result().status for one in tries]
    assert statuses.count(403) == 5
    assert statuses.count(429) == 35


def test_wrong_tokens_from_many_addresses_are_limited(serve, fresh_tries):
    numbers = iter(range(10_000))

    def around(wsgi):
        return lambda given, start: wsgi(
            {**given, "REMOTE_ADDR": f"10.0.{next(numbers) // 250}.{next(numbers) % 250}"}, start
        )

    visitor = serve(token=TOKEN, around=around)
    bearer = [visitor.get("/metrics", Authorization="Bearer wrong").status for _ in range(60)]
    assert bearer == [403] * 50 + [429] * 10


def test_an_ipv6_network_is_limited_like_one_address(serve, fresh_tries):
    numbers = iter(range(10_000))

    def around(wsgi):
        return lambda given, start: wsgi({**given, "REMOTE_ADDR": f"2001:db8::{next(numbers):x}"}, start)

    visitor = serve(token=TOKEN, around=around)
    statuses = [visitor.get("/metrics", Authorization="Bearer wrong").status for _ in range(7)]
    assert statuses == [403] * 5 + [429] * 2


def test_programs_with_the_token_can_read_but_not_act(serve, acted):
    visitor = serve(token=TOKEN, allow_actions=True)
    visitor.headers["Authorization"] = f"Bearer {TOKEN}"
    assert visitor.get("/api/overview.json").status == 200
    assert visitor.get("/metrics").status == 200
    assert act(visitor).status == 403
    assert not acted
    del visitor.headers["Authorization"]
    refused = visitor.get("/api/overview.json")
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")


def session_cookie(visitor):
    [(name, value)] = [
        (name, value) for name, value in visitor.cookies.items() if re.fullmatch(r"outboxq(-[0-9a-f]{8})?", name)
    ]
    return name, value


def test_a_session_cannot_be_forged(serve):
    visitor = serve(token=TOKEN)
    visitor.log_in(TOKEN)
    name, value = session_cookie(visitor)
    content, _, signature = value.partition(".")
    other = serve(token="another token altogether")
    for forged in (
        content,
        f"{content}.",
        f"{content}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}",
        f"A{content}.{signature}",
        ".",
        "",
        "é",
        "x" * 4000,
        "null.null",
    ):
        assert Visitor(visitor.port, cookies={name: forged.encode().decode("latin-1")}).get("/").status == 303
    assert Visitor(other.port, cookies={name: value}).get("/").status == 303
    assert Visitor(visitor.port, cookies={name: value}).get("/").status == 200


def test_a_session_ends_after_twelve_hours(serve, monkeypatch):
    visitor = serve(token=TOKEN)
    visitor.log_in(TOKEN)
    now = browser.time.time
    for hours, status in ((11.9, 200), (12.1, 303)):
        monkeypatch.setattr("outboxq.web.browser.time.time", lambda hours=hours: now() + hours * 3600)
        assert visitor.get("/").status == status


def test_a_login_replaces_all_cookies_of_the_browser(serve):
    visitor = serve(token=TOKEN)
    planted = visitor.get("/login")
    before = dict(visitor.cookies)
    visitor.log_in(TOKEN)
    assert not set(before.items()) & set(visitor.cookies.items())
    name, value = session_cookie(visitor)
    visitor.log_in(TOKEN)
    assert session_cookie(visitor) != (name, value)
    assert planted.csrf not in visitor.get("/probe").text


def test_a_login_form_of_another_site_is_refused(serve):
    visitor = serve(token=TOKEN)
    assert visitor.post("/login", {"token": TOKEN}).status == 403
    assert visitor.log_in(TOKEN, Origin="https://evil.example").status == 403


@pytest.mark.parametrize(
    "next",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example/",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        "javascript:alert(1)",
        "///evil.example",
        "/%0d%0aSet-Cookie: x=y",
        "/a\r\nSet-Cookie: x=y",
        "http:evil.example",
        "",
    ],
    ids=lambda text: quote(text, safe="/:"),
)
def test_a_login_never_redirects_to_another_site(serve, next):
    visitor = serve(token=TOKEN)
    page = visitor.get("/login")
    answer = visitor.post("/login", {"csrf": page.csrf, "token": TOKEN, "next": next})
    assert answer.status == 303
    assert re.match(r"/(?![/\\])", answer.location)
    assert "evil" not in answer.location
    assert not [one for one in answer.headers.get_all("Set-Cookie") if one.startswith("x=")]


def test_cookies_are_hidden_from_scripts_and_other_sites(serve):
    visitor = serve(token=TOKEN, trusted_proxies=["127.0.0.1"])
    found = [
        *visitor.get("/login").headers.get_all("Set-Cookie"),
        *visitor.log_in(TOKEN).headers.get_all("Set-Cookie"),
    ]
    assert len(found) >= 3
    assert all("HttpOnly" in one and "SameSite=Strict" in one and "Path=/" in one for one in found)
    by_https = Visitor(
        serve(
            token=TOKEN, trusted_proxies=["127.0.0.1"], around=from_address("127.0.0.1", HTTP_X_FORWARDED_PROTO="https")
        ).port
    )
    found = [
        *by_https.get("/login").headers.get_all("Set-Cookie"),
        *by_https.log_in(TOKEN).headers.get_all("Set-Cookie"),
    ]
    assert all(one.startswith("__Host-outboxq") and "Secure" in one and "Domain" not in one for one in found)
    assert by_https.get("/").status == 200


def test_a_link_from_another_site_reloads_to_send_the_cookies(serve):
    visitor = serve(token=TOKEN)
    answer = visitor.get("/probe?a=%22b", **{"Sec-Fetch-Site": "cross-site"})
    assert answer.status == 200
    assert 'content="0; url=/probe?a=%22b"' in answer.text
    assert visitor.get("/", HX_Request="true").headers["HX-Refresh"] == "true"


@pytest.mark.parametrize("token", ["", "short", "x" * 15])
def test_a_token_that_can_be_guessed_is_refused(token):
    with pytest.raises(ConfigurationError, match="can be guessed"):
        application(Outbox("sqlite:///none.db"), token=token)


@pytest.mark.parametrize("token", [f" {TOKEN}", f"{TOKEN}\n"])
def test_a_token_that_begins_or_ends_with_a_space_is_refused(token):
    with pytest.raises(ConfigurationError, match="begins or ends with"):
        application(Outbox("sqlite:///none.db"), token=token)


def test_an_invalid_token_from_a_program_is_logged_without_its_value(serve, caplog):
    assert serve(token=TOKEN).get("/metrics", Authorization="Bearer guessed-by-a-program").status == 403
    assert [record.getMessage() for record in caplog.records] == ["someone at 127.0.0.1 sent an invalid token"]


# A proxy that authenticates users


def test_the_user_header_is_trusted_only_from_the_proxy(serve, acted):
    options = {"trust_header": "X-Forwarded-User", "trusted_proxies": ["10.0.0.0/8"], "allow_actions": True}
    ann = {"HTTP_X_FORWARDED_USER": "ann"}
    visitor = serve(**options, around=from_address("10.1.2.3", **ann))
    assert act(visitor).status == 303
    assert [viewer.name for viewer, _ in acted] == ["ann"]
    assert serve(**options, around=from_address("11.1.2.3", **ann)).get("/").status == 403
    assert serve(**options, around=from_address("127.0.0.1", **ann)).get("/").status == 403
    assert serve(**options, around=from_address("10.1.2.3")).get("/").status == 403


@pytest.mark.parametrize("names", [("ann", "bob"), ("bob, ann",)], ids=["two headers", "one header"])
def test_a_request_whose_headers_name_several_people_is_refused(serve, acted, names):
    """The visitor may have sent one of the two names, which the proxy has passed on."""
    options = {"trust_header": "X-Forwarded-User", "trusted_proxies": ["10.0.0.0/8"], "allow_actions": True}
    visitor = serve(**options, around=from_address("10.1.2.3"))
    connection = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=60)
    connection.putrequest("GET", "/")
    for name in names:
        connection.putheader("X-Forwarded-User", name)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 403
    assert "The header X-Forwarded-User names several people; the proxy must overwrite it." in answer.read().decode()
    connection.close()
    assert visitor.get("/", **{"X-Forwarded-User": "ann"}).status == 200


def test_a_forwarded_address_is_trusted_only_from_the_proxy(serve, fresh_tries):
    def tries(**options):
        numbers = iter(range(10_000))

        def around(wsgi):
            return lambda given, start: wsgi({**given, "HTTP_X_FORWARDED_FOR": f"9.9.9.{next(numbers)}"}, start)

        visitor = serve(token=TOKEN, around=around, **options)
        return [visitor.get("/metrics", Authorization="Bearer wrong").status for _ in range(7)]

    assert tries() == [403] * 5 + [429] * 2
    assert tries(trusted_proxies=["127.0.0.1"]) == [403] * 7


@pytest.mark.parametrize(
    "options",
    [
        {"authorize": lambda environ: "read", "token": TOKEN},
        {"trust_header": "X-User"},
        {"trust_header": "X-User", "trusted_proxies": ["10.0.0.0/99"]},
        {"token": TOKEN, "trusted_hosts": "tasks.example.org"},
        {"token": TOKEN, "trusted_proxies": "10.0.0.0/8"},
        {"token": TOKEN, "trusted_hosts": ["https://tasks.example.org/"]},
    ],
    ids=["two ways", "no proxies", "no network", "one host", "one proxy", "an address"],
)
def test_options_that_contradict_each_other_are_refused(options):
    with pytest.raises(ConfigurationError):
        application(Outbox("sqlite:///none.db"), **options)


# Responses


PATHS = [
    "/",
    "/probe",
    "/nothing",
    "/fail",
    "/static/x/style.css",
    "/static/x/none",
    "/healthz",
    "/metrics",
    "/api/probe.json",
    "/login",
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "PUT", "TRACE", "X-ODD"])
@pytest.mark.parametrize("options", [{}, {"token": TOKEN}], ids=["open", "token"])
def test_each_response_has_the_security_headers(serve, options, method):
    visitor = serve(**options)
    for path in PATHS:
        answer = visitor.ask(method, path, body="" if method == "POST" else None)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; "), path
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store" or path.startswith("/static/x/style")
        assert method != "HEAD" or answer.text == ""
        if method in {"PUT", "TRACE", "X-ODD"}:
            assert answer.status in {303, 401, 404, 405}


def test_a_failure_is_logged_and_not_shown(serve, caplog):
    answer = serve().get("/fail")
    assert answer.status == 500
    assert "hunter2" not in answer.text
    assert "RuntimeError" not in answer.text
    assert "hunter2" in caplog.text


def test_an_outage_is_reported_and_pages_recover_afterwards(serve, tmp_path, caplog):
    visitor = serve()
    assert visitor.get("/system").status == 200
    (tmp_path / "outboxq.db").rename(tmp_path / "away.db")
    for path in ("/healthz", "/", "/api/overview.json"):
        assert visitor.get(path).status == 503
    assert "deleted" not in visitor.get("/healthz").text, "anyone can read /healthz"
    assert '<a href="/tasks?queue=a+b">Try again</a>' in visitor.get("/tasks?queue=a+b").text
    assert len(caplog.records) <= 2, "logged for each request"
    (tmp_path / "away.db").rename(tmp_path / "outboxq.db")
    assert [visitor.get(path).status for path in ("/healthz", "/", "/api/overview.json")] == [200, 200, 200]


# Forms that are too large, and unusual requests


@pytest.mark.parametrize("size", [64 * 1024, 64 * 1024 + 1])
def test_a_form_is_limited_to_64_kilobytes(serve, acted, size):
    visitor = serve(allow_actions=True)
    token = visitor.get("/probe").csrf
    body = f"csrf={token}&x="
    body += "x" * (size - len(body))
    assert visitor.post("/act", body).status == (303 if size == 64 * 1024 else 413)
    assert len(acted) == (size == 64 * 1024)


def test_a_form_without_a_length_has_the_same_limit(serve, acted):
    visitor = serve(allow_actions=True)
    token = visitor.get("/probe").csrf
    chunk = "x" * 70_000
    body = f"{len(chunk):x}\r\n{chunk}\r\n0\r\n\r\n"
    answer = visitor.ask("POST", "/act", body=body, headers={"Content-Type": FORM, "Transfer-Encoding": "chunked"})
    assert answer.status in {403, 413}
    assert token
    assert not acted


def test_a_form_is_limited_to_500_fields(serve, acted):
    visitor = serve(allow_actions=True)
    token = visitor.get("/probe").csrf
    assert visitor.post("/act", f"csrf={token}" + "&a=" * 499).status == 303
    assert visitor.post("/act", f"csrf={token}" + "&a=" * 500).status == 413
    assert visitor.post("/act", f"csrf={token}&a=%00").status == 400
    assert len(acted) == 1


@pytest.mark.parametrize(
    "path", ["/%00", "/%ff%fe", "/..%2f..%2fetc/passwd", "//evil.example/", "/a%0d%0aX:%20y", "/" + "x" * 5000]
)
def test_an_odd_path_is_not_found(serve, path):
    answer = serve().get(path)
    assert answer.status in {404, 308}
    assert "evil.example" not in answer.location
    assert "X" not in answer.headers


@pytest.mark.parametrize("path", ["/tasks//", "/tasks//x", "/queue//pause"])
def test_slashes_are_not_merged(serve, path):
    assert serve().get(path).status == 404


@pytest.mark.parametrize("path", ["/healthz", "/", "/login", "/api/tasks.json"])
def test_invalid_utf8_in_an_address_is_refused_without_a_traceback(serve, caplog, path):
    """waitress refuses such requests, but other servers do not."""
    visitor = serve(token=TOKEN, around=from_address("127.0.0.1", QUERY_STRING="name=\xff"))
    assert visitor.get(path).status == 400
    assert [
        one for one in caplog.records if one.name.startswith("outboxq")
    ] == []  # waitress logs a line when it is busy


def test_utf8_in_a_query_is_decoded(serve, sqlite_url):
    set_up = Outbox(sqlite_url)
    set_up.store.queues.order("café", fair=False, create=True)
    set_up.store.bound_engine.dispose()
    visitor = serve(around=from_address("127.0.0.1", QUERY_STRING="name=caf\xc3\xa9"))
    assert "<h1>caf\u00e9</h1>" in visitor.get("/queue").text


def test_there_is_no_login_without_a_token(serve, caplog):
    visitor = serve(authorize=lambda environ: "read")
    assert visitor.get("/login").status == 404
    assert visitor.post("/login").status == 404
    assert caplog.records == []


# Notices


def test_a_notice_is_shown_once_and_escaped(serve):
    visitor = serve(allow_actions=True)
    hostile = "<script>alert(1)</script>\r\nSet-Cookie: x=y\u202e" + "ü" * 2000
    answer = act(visitor, {"notice": hostile})
    assert "x" not in visitor.cookies
    assert not any("\n" in value for value in answer.headers.values())
    shown = visitor.get("/").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "\\u202e" in shown
    assert 'role="status"' in shown
    assert "alert(1)" not in visitor.get("/").text


def test_a_notice_cannot_be_forged(serve):
    visitor = serve(allow_actions=True)
    act(visitor, {"notice": "it was done"})
    [name] = [name for name in visitor.cookies if "notice" in name]
    other = Visitor(visitor.port, cookies={name: visitor.cookies[name]})
    assert "it was done" not in other.get("/").text
    assert "it was done" in visitor.get("/").text


# The log


def test_an_action_is_logged_in_one_line_with_its_viewer(serve, caplog):
    caplog.set_level(logging.INFO, "outboxq.web")
    name = "ann\n2030-01-01 INFO outboxq.web: ben: act\x1b[31m"
    visitor = serve(authorize=lambda environ: Viewer(name=name, may_act=True), allow_actions=True)
    act(visitor, {"queue": "mail\n2030 forged"})
    [line] = [record.getMessage() for record in caplog.records if " act " in record.getMessage()]
    assert "ann\\n2030" in line
    assert "mail\\\\n2030 forged" in line or "mail\\n2030 forged" in line
    assert line.isprintable()
    assert "csrf" not in line


def test_an_action_that_fails_is_logged_too(serve, caplog):
    caplog.set_level(logging.INFO, "outboxq.web")
    visitor = serve(authorize=lambda environ: Viewer(name="ann", may_act=True), allow_actions=True)
    token = visitor.get("/probe").csrf
    answer = visitor.post("/queue/pause?name=typo", {"csrf": token})
    assert answer.status == 404
    assert "set it up before its first task, start a worker that serves it." in answer.text
    assert "create" not in answer.text.partition("<main")[2]
    assert "ann: queue_pause {'name': 'typo'}: failed with QueueNotFound" in caplog.text
