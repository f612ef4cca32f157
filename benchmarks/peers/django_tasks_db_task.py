"""The only task, in a module that cannot be imported before Django is set up."""

from __future__ import annotations

from django_tasks import task

from benchmarks.peers.driver import began


@task()
def bench(number: int) -> None:
    began(number)
