"""Metrics for Prometheus, where an application has a registry or an HTTP server of its own.

A worker serves them by itself with ``outboxq worker --metrics-port`` or ``outbox.worker(metrics_port=…)``.
"""

from __future__ import annotations

from ..worker.prometheus import WorkerCollector

__all__ = ["WorkerCollector"]
