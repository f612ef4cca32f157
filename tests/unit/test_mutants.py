"""The mistakes of tests/mutants.py can still be made; that they are caught, `nox -s mutants` sees."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mistake)
def test_what_a_mutant_breaks_is_there(mutant):
    text = (ROOT / mutant.file).read_text()
    for old, new in mutant.changes:
        assert old in text, f"{mutant.file} has changed: say how to break it now"
        text = text.replace(old, new)
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")  # else the tests would fail over the syntax, not over the mistake
    for name in mutant.tests:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists()
        assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text() or not test
