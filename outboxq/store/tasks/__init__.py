"""Tasks: reading them, their history and their results, and the operations of people and programs."""
