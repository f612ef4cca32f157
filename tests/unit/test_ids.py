"""Ids are created without the checks of `UUID(int=…)`, but are equivalent objects."""

from __future__ import annotations

import copy
import pickle
from uuid import UUID, uuid4

import pytest

from outboxq.model.uuid7 import are_uuid7s, is_uuid7, uuid7, uuid7s


def test_an_id_equals_the_uuid_parsed_from_its_text():
    for one in (uuid7(), *uuid7s(3)):
        same = UUID(str(one))
        assert (one, hash(one), one.int, one.is_safe) == (same, hash(same), same.int, same.is_safe)
        assert (one.version, one.variant) == (7, same.variant)
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == same


def test_ids_are_sorted_in_the_order_of_creation():
    made = [uuid7(), *uuid7s(2000), uuid7()]
    assert sorted(made) == made
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    "other",
    [uuid4(), UUID(int=uuid7().int ^ 1 << 63), str(uuid7()), None, 7],
    ids=["version", "variant", "text", "none", "number"],
)
def test_an_id_of_another_kind_is_detected_among_many(other):
    assert is_uuid7(uuid7())
    assert are_uuid7s(uuid7s(3))
    assert not is_uuid7(other)
    assert not are_uuid7s([*uuid7s(3), other])
