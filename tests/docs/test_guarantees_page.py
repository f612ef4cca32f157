"""The page about guarantees: its proofs exist, and each promise in its table has proofs."""

from __future__ import annotations

import re

import pytest

from tests.docs.guarantees import PAGE, PROOFS, ROOT, proofs
from tests.docs.tables import between


def test_the_listed_proofs_match_the_tests_and_verify():
    assert between(PAGE, "proofs") == proofs(), "run: python -m tests.docs.guarantees"


def test_each_promise_of_the_table_has_proofs():
    promises = re.findall(r"^\| \*\*(.+?)\*\*", PAGE.read_text(), re.MULTILINE)
    assert [one.removesuffix(".") for one in promises] == list(PROOFS)


@pytest.mark.parametrize("test", [test for proof in PROOFS.values() for test in proof.tests])
def test_each_named_test_exists(test):
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
