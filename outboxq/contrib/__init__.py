"""Integrations with frameworks, and hooks for tracing. outboxq itself imports none of these modules; a program imports its own."""
