"""The worker: it claims tasks, runs them, records their outcomes, recovers the tasks of dead workers, and waits for
more.

Import its modules individually: `outboxq worker --help` needs only the options, not the code that runs tasks.
"""
