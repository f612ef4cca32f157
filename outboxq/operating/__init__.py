"""The actions that a person can take on a task, a queue, a schedule or a batch, defined once for all front ends."""
