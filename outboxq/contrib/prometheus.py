"""Metrics for Prometheus, for an application with its own registry or HTTP server.

A worker serves them by itself with ``outboxq worker --metrics-port`` or ``outbox.worker(metrics_port=…)``.
"""

from __future__ import annotations

from ..worker.prometheus import WorkerCollector

__all__ = ["WorkerCollector"]
