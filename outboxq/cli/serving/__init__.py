"""The commands that go on until they are told to stop: workers, their supervisor, and the dashboard."""
