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
def test_members_of_both_are_kept_and_ours_win(ours, earlier, joined):
    found = with_baggage({"traceparent": "t", "baggage": ours}, {"request-id": "r", "baggage": earlier})
    assert found == {"traceparent": "t", "baggage": joined}


def test_without_any_member_there_is_no_header():
    assert with_baggage({"traceparent": "t"}, {}) == {"traceparent": "t"}


def test_a_member_that_does_not_fit_is_left_out_and_the_next_one_is_not():
    long, fits = f"long={'x' * LONGEST}", f"fits={'y' * (LONGEST // 2)}"
    found = with_baggage({"baggage": f"a=1,{long}"}, {"baggage": f"{fits},other={'z' * LONGEST},b=2"})
    assert found == {"baggage": f"a=1,{fits},b=2"}
