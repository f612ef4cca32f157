"""The project's app."""
