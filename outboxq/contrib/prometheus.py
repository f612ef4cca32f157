"""Prometheus metrics for applications that have their own registry or HTTP server.

With ``outboxq worker --metrics-port`` or ``outbox.worker(metrics_port=…)``, a worker serves the metrics itself.
"""

from __future__ import annotations

from ..worker.prometheus import WorkerCollector

__all__ = ["WorkerCollector"]
