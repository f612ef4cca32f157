"""Tasks: reading them, their history and results, and what people and programs do to them."""
