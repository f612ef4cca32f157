"""The steps of tasks that a harness runs: with results that a test gives beforehand, and in memory for a task without a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..context import TaskContext
from ..model import Claim
from ..model.steps import Step
from ..payload.parameters import dump_result
from ..store import NewStep, Written
from ..worker.steps import HandlerSteps, Steps


@dataclass(kw_only=True, eq=False, repr=False)
class HarnessSteps(Steps):
    """The steps of the runs of a harness. What a test gave stands for a stored result; of a sleep, it says that it is over."""

    given: Mapping[str, Any] = field(default_factory=dict)
    in_memory: bool = False
    """True: the task has no row, so neither have its steps."""
    results: dict[str, Any] = field(default_factory=dict)
    """The results of the present run, as the handler got them."""

    def run(
        self,
        context: TaskContext,
        name: str,
        call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
        *,
        transactional: bool,
    ) -> Any:
        result = super().run(context, name, call, transactional=transactional)
        self.results[name] = result
        return result

    def sleep(self, context: TaskContext, name: str, delay: timedelta | float) -> None:
        if name in self.given:
            self._begin(context, name).used.add(name)
            return
        super().sleep(context, name, delay)

    def _known(self, context: TaskContext) -> HandlerSteps:
        known = HandlerSteps(stored={}, count=0) if self.in_memory else super()._known(context)
        for name, value in self.given.items():
            known.stored.setdefault(name, _given(context.claim, name, value))
        return known

    def _complete(self, claim: Claim, step: NewStep, using: object = None) -> Written | None:
        if not self.in_memory:
            return super()._complete(claim, step, using)
        return Written(due_at=None if step.delay is None else self.store.now() + step.delay)

    def _is_written(self, claim: Claim, name: str) -> bool:
        return self.in_memory or super()._is_written(claim, name)


def _given(claim: Claim, name: str, value: object) -> Step:
    return Step(
        task_execution_id=claim.id,
        name=name,
        number=1,
        lease_token=claim.lease_token,
        result=dump_result(value, name=f"{claim.task_name}: the given result of step {name!r}"),
        due_at=None,
        created_at=claim.started_at,
    )
