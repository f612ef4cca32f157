"""NewTask sets all its fields in one step, but is a frozen dataclass."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import pytest

from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7

GIVEN: dict[str, Any] = {"id": uuid7(), "task_name": "tests.work", "args": "{}"}


def test_an_omitted_field_has_its_default():
    new = NewTask(**GIVEN, priority=3)
    defaults = {one.name: one.default for one in fields(NewTask) if one.name not in GIVEN}
    assert asdict(new) == {**defaults, **GIVEN, "priority": 3}
    assert (
        new
        == NewTask(**GIVEN, **{**defaults, "priority": 3})
        == NewTask.of({**GIVEN, "priority": 3}, GIVEN["id"], "{}")
    )
    assert hash(new) == hash(NewTask(**GIVEN, **{**defaults, "priority": 3}))


def test_a_new_task_can_be_changed_only_in_a_copy():
    new = NewTask.of({"task_name": "tests.work"}, uuid7(), "{}")
    with pytest.raises(FrozenInstanceError):
        new.priority = 3  # type: ignore[misc]
    changed = replace(new, priority=3)
    assert (changed.priority, changed.made_of, new.priority) == (3, None, 0)
    assert pickle.loads(pickle.dumps(changed)) == changed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**GIVEN, "prioritty": 3}, "got an unexpected keyword argument 'prioritty'"),
        ({**GIVEN, "made_of": {}}, "got an unexpected keyword argument 'made_of'"),
        ({"id": uuid7(), "args": "{}"}, "missing 1 required keyword-only argument: 'task_name'"),
    ],
)
def test_field_names_are_checked(given, message):
    with pytest.raises(TypeError, match=f"NewTask.__init__\\(\\) {message}"):
        NewTask(**given)
