"""Groups of failures: details that vary from failure to failure do not create new groups."""

from __future__ import annotations

from uuid import uuid4

import pytest

from outboxq.model.display import HEAD, group_of, message_of


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ValueError: no", "ValueError: no"),
        ("KeyError: 'order-7'\n  more", "KeyError: …"),
        ("KeyError: 'postal_code'", "KeyError: 'postal_code'"),
        ('shop.errors.Missing: "postal_code"\n  more', 'shop.errors.Missing: "postal_code"'),
        ("ValueError: 'blue' is no colour", "ValueError: … is no colour"),
        ("TimeoutError: after 30.5 s on host 10.0.0.1:5432", "TimeoutError: after … s on host …"),
        (
            "NotFound: ae0073ee-74e7-4b01-874f-c53f8372fa96 and 923a3118-ca09-413e-af29-013ae2d1c023",
            "NotFound: … and …",
        ),
        ("Bad: deadbeef01 but dead beef, 0xFF at line 12", "Bad: … but dead beef, … at line …"),
        ("can't find user 12's file", "can't find user …'s file"),
        ('refused: "a" is not "b"', "refused: … is not …"),
        ("", ""),
        (None, ""),
        ("   spaces   \n", "spaces"),
    ],
)
def test_ids_numbers_and_quoted_texts_are_left_out(error, message):
    assert message_of(error) == message


def test_a_long_message_is_cut_to_200_characters_without_partial_ids():
    both = [("word " * 100 + str(uuid4()))[: HEAD - number] for number in (0, 0)]
    assert message_of(both[0]) == message_of(both[1])
    assert len(message_of(both[0])) == 200
    cut = ["a" * 20 + " " * (HEAD - 40) + one for one in ("1234567890abcdef1234", "fedcba0987654321ffff")]
    assert message_of(cut[0]) == message_of(cut[1])
    assert len({message_of(" ".join([text] * 300)[:HEAD]) for text in ("x", "y")}) == 2


def test_the_id_of_a_group_is_the_same_in_all_processes():
    assert group_of("mail.send", "builtins.ValueError", "no") == "cb092cf0205338ab"
    names = {group_of(*one) for one in (("a", None, "b"), ("a", "b", ""), ("a", "", "b"), ("ab", None, ""))}
    assert len(names) == 3, "an exception of None and an empty name are the same, and all others differ"
