"""The worker, which waits for tasks, claims and runs them, records their outcomes, and recovers the tasks of dead
workers.

Import the modules of this package individually: `outboxq worker --help` needs only the options, not the code that runs
tasks.
"""
