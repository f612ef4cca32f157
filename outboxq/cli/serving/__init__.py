"""The commands that run until they are told to stop: workers, their supervisor, and the dashboard."""
