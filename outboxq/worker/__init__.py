"""The worker: claims tasks, runs them, writes how they ended, recovers those of dead workers, and waits for more.

Import its modules individually: `outboxq worker --help` needs only the options, not the code that runs tasks.
"""
