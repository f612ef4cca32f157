"""Isolation: each handler runs in a child process, which can be killed."""
