"""The command line of outboxq."""

from __future__ import annotations

from .main import main

__all__ = ["main"]
