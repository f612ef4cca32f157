"""A browser without JavaScript, over a real connection: it keeps cookies and submits forms, and follows no redirects."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urlencode

FORM = "application/x-www-form-urlencoded"


@dataclass
class Answer:
    """A response."""

    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def location(self) -> str:
        return self.headers["Location"] or ""

    @property
    def csrf(self) -> str:
        return unescape(re.search(r'name="csrf" value="([^"]*)"', self.text)[1])


@dataclass
class Visitor:
    """A browser. `headers` are sent with each request."""

    port: int
    headers: dict[str, str] = field(default_factory=dict)
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=named(headers))

    def post(self, path: str, fields: Mapping[str, str] | str = "", **headers: str) -> Answer:
        body = fields if isinstance(fields, str) else urlencode(fields)
        return self.ask("POST", path, body=body, headers={"Content-Type": FORM, **named(headers)})

    def ask(self, method: str, path: str, *, body: str | None = None, headers: Mapping[str, str] = {}) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {"Accept": "text/html", **self.headers, **headers}
        if self.cookies:
            given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, path, body=body, headers=given)
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()
        for one in answer.headers.get_all("Set-Cookie", ()):
            name, _, rest = one.partition("=")
            value = rest.partition(";")[0]
            if "Max-Age=0" in rest:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return answer

    def log_in(self, token: str, *, next: str = "/", **headers: str) -> Answer:
        page = self.get(f"/login?{urlencode({'next': next})}", **headers)
        found = re.search(r'name="next" value="([^"]*)"', page.text)[1]
        return self.post("/login", {"csrf": page.csrf, "next": unescape(found), "token": token}, **headers)


def named(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers from keyword arguments, whose names have underscores instead of hyphens."""
    return {name.replace("_", "-"): value for name, value in headers.items()}
