"""Integrations with frameworks. outboxq itself imports none of these modules; a program imports that of its framework."""
