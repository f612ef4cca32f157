"""Tasks: reading them, their history and their results, and operations by people and programs."""
