"""The header that tracing libraries share."""

from __future__ import annotations

import pytest

from outboxq.contrib.tracing import LONGEST, with_baggage


@pytest.mark.parametrize(
    ("ours", "earlier", "joined"),
    [
        ("a=1", "", "a=1"),
        ("", "b=2;p=x", "b=2;p=x"),
        ("a=1", "b=2", "a=1,b=2"),
        ("a=1, c=3", "a=9 , b=2,", "a=1,c=3,b=2"),
    ],
)
def test_baggage_members_are_merged_and_new_ones_win(ours, earlier, joined):
    found = with_baggage({"traceparent": "t", "baggage": ours}, {"request-id": "r", "baggage": earlier})
    assert found == {"traceparent": "t", "baggage": joined}


def test_no_baggage_header_is_added_without_members():
    assert with_baggage({"traceparent": "t"}, {}) == {"traceparent": "t"}


def test_only_baggage_members_that_do_not_fit_are_omitted():
    long, fits = f"long={'x' * LONGEST}", f"fits={'y' * (LONGEST // 2)}"
    found = with_baggage({"baggage": f"a=1,{long}"}, {"baggage": f"{fits},other={'z' * LONGEST},b=2"})
    assert found == {"baggage": f"a=1,{fits},b=2"}
