"""The messages that an application exchanges with other programs."""
