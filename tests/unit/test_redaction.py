"""Stored JSON as shown to people: secrets are hidden at any depth, and nothing else changes."""

from __future__ import annotations

import json
import re

import pytest

from outboxq.model.display import ASTERISKS, redacted


def test_values_of_secret_names_are_hidden_at_any_depth():
    text = json.dumps({"user": "ann", "Password": "p1", "list": [{"api_key": {"x": "p2"}}], "access_token": ["p3"]})
    shown = redacted(text)
    assert not re.search("p1|p2|p3", shown)
    assert json.loads(shown) == {
        "user": "ann",
        "Password": ASTERISKS,
        "list": [{"api_key": ASTERISKS}],
        "access_token": ASTERISKS,
    }


@pytest.mark.parametrize(
    "name",
    [
        "X-API-Key",
        "api key",
        "apiKey",
        "AWS_ACCESS_KEY_ID",
        "privateKey",
        "db_pwd",
        "Authorization",
        "X-Auth",
        "card_cvv",
        "sessionid",
        "pin",
        "jwt",
        "Set-Cookie",
    ],
)
def test_secret_names_are_recognised_in_any_spelling(name):
    assert "p1" not in redacted(json.dumps({name: "p1"}))


@pytest.mark.parametrize(
    "name", ["author", "shipping", "spin", "key", "partition_key", "monkey", "keyboard", "session"]
)
def test_other_names_are_shown(name):
    assert "p1" in redacted(json.dumps({name: "p1"}))


def test_redacted_text_is_indented_json():
    value = {"a": [1, {"b": None}, [], {}, True], "ü": "x\n\u0000"}
    assert redacted(json.dumps(value)) == json.dumps(value, indent=2, ensure_ascii=False)


@pytest.mark.parametrize("number", ["12345678901234567890123", "0.10000000000000000000001", "1e400", "-0.0", "1E5"])
def test_a_number_keeps_its_digits(number):
    assert redacted(f'{{"n": {number}}}') == f'{{\n  "n": {number}\n}}'


def test_a_number_of_thousands_of_digits_is_shown():
    assert redacted("9" * 5000) == "9" * 5000


@pytest.mark.parametrize(
    ("text", "kind"),
    [('{"password": "p1"', "JSONDecodeError"), ("[" * 100_000, "RecursionError")],
    ids=["cut off", "too deep"],
)
def test_text_that_is_not_json_is_not_shown(text, kind):
    assert redacted(text) == f"(cannot be read: {kind})"


def test_the_pattern_determines_the_hidden_names_and_none_hides_nothing():
    assert json.loads(redacted('{"iban": 1, "token": 2}', re.compile("iban"))) == {"iban": ASTERISKS, "token": 2}
    assert json.loads(redacted('{"token": 2}', None)) == {"token": 2}


def test_a_missing_value_is_shown_as_empty():
    assert redacted(None) == ""
