"""Integrations with frameworks, views that receive webhooks, and hooks for tracing and error reports. Except for the
test helpers, no part of outboxq imports these modules; a program imports the ones that it uses.
"""
