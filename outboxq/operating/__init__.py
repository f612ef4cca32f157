"""What a person can do to a task, a queue, a schedule or a batch, defined once for all front ends."""
