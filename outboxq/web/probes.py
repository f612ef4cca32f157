"""Answers for programs that watch: whether the dashboard is well, and the numbers of its database."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from werkzeug.wrappers import Request, Response

from ..errors import ConfigurationError
from ..model.display import as_json
from ..store.failure_log import FailureLog
from .freshness import Freshness

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..outbox import Outbox

HEALTH: Final = "/healthz"
METRICS: Final = "/metrics"


class Probes:
    """Answers `/healthz` and `/metrics`."""

    def __init__(self, outbox: Outbox, freshness: Freshness) -> None:
        self._outbox, self._freshness = outbox, freshness
        self._outage = FailureLog(logging.getLogger("outboxq.web"))
        self._registry: CollectorRegistry | None = None

    def health(self) -> Response:
        """Return 200 if the database answers, else 503, and whether tables are locked: no word more, since everyone may ask.

        It takes a connection that no page has, and waits for no lock.
        """
        try:
            locked = self._freshness.shared("healthz", self._look)
        except Exception as error:  # noqa: BLE001
            self._outage.failed("the dashboard does not reach the database", error)
            return _text("the database does not answer\n", status=503)
        self._outage.worked("the dashboard reaches the database again")
        return _text("ok, but another session has locked the tables: no page can be shown\n" if locked else "ok\n")

    def _look(self) -> bool:
        """Return whether the tables are locked; raises if the database does not answer."""
        store = self._outbox.store
        store.ensure_file()  # a connection would make an empty one
        try:
            alone = store.reserved(threading.Event())
        except ConfigurationError:  # one connection serves all threads, in a test
            return store.tables_are_locked()
        try:
            alone.now()
            return alone.tables_are_locked()
        finally:
            alone.bound_engine.dispose()

    def deep_health(self) -> Response:
        """Return 200, or 503 with one JSON object a line for each problem that `outboxq check` would find."""
        problems: list[Any] = self._freshness.shared("health", self._outbox.store.health)
        lines = "".join(f"{json.dumps(as_json(one))}\n" for one in problems)
        return Response(lines, status=503 if problems else 200, mimetype="application/x-ndjson")

    def metrics(self, request: Request) -> Response:
        """Return the gauges of the database as Prometheus reads them."""
        try:
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import choose_encoder
        except ModuleNotFoundError:
            sentence = "/metrics needs the package prometheus-client; run: pip install 'outboxq[prometheus]'\n"
            return _text(sentence, status=501)
        if self._registry is None:
            from ..worker.prometheus import DatabaseCollector

            registry = CollectorRegistry()
            registry.register(DatabaseCollector(self._outbox.store))
            self._registry = registry
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(self._registry), content_type=content_type)


def _text(text: str, *, status: int = 200) -> Response:
    return Response(text, status=status, mimetype="text/plain")
