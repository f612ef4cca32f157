"""Integrations: the transaction of a framework's request, the sessions of its handlers, and how its commands are typed."""

from .base import Integration
from .front_end import FrontEnd

__all__ = ["FrontEnd", "Integration"]
