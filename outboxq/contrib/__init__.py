"""Integrations with frameworks, views that receive webhooks, and hooks for tracing and error reports. Apart
from its helpers for tests, outboxq imports none of these modules; a program imports the ones that it uses.
"""
