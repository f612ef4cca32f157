"""The worker: claims tasks, runs them, writes how they ended, recovers those of dead workers, and waits for more."""

from .options import WorkerOptions
from .worker import Worker

__all__ = ["Worker", "WorkerOptions"]
