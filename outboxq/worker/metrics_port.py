"""The port on which a worker answers Prometheus. For a worker without one, nothing is imported and nothing runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..store import Store
from .options import WorkerSettings

if TYPE_CHECKING:
    from .prometheus import MetricsServer
    from .worker import Worker


@dataclass(kw_only=True, eq=False, repr=False)
class MetricsPort:
    """Serves the metrics of a worker from `opening` to `close`, if the worker's settings name a port."""

    worker: Worker
    settings: WorkerSettings
    store: Store
    """Its database is read, on a connection of the port's own."""
    stopped: threading.Event
    """Set when that connection need not be waited for any more."""

    def __post_init__(self) -> None:
        self._server: MetricsServer | None = None

    @contextmanager
    def opening(self, is_kept: Callable[[], bool]) -> Iterator[None]:
        """Open the port, and close it after the block unless `is_kept` says then that the worker has begun.

        Raises ConfigurationError if the port is taken, or if prometheus-client is not installed.
        """
        self._open()
        try:
            yield
        finally:
            if not is_kept():
                self.close()

    def close(self) -> None:
        """Close the port, if it is open."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _open(self) -> None:
        host, port = self.settings.metrics_host, self.settings.metrics_port
        if port is None or self._server is not None:
            return
        try:
            from .prometheus import MetricsServer
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "prometheus_client":
                raise
            needs = "metrics_port (in commands --metrics-port) needs prometheus-client"
            raise ConfigurationError(f"{needs}; run: pip install 'outboxq[prometheus]'") from error
        self._server = MetricsServer(self.worker, self.store.reserved(self.stopped), host=host, port=port)
