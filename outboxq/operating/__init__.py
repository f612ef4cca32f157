"""The actions that a person can take on a task, queue, schedule, batch, relay or worker, defined once."""
