"""The mutants in tests/mutants.py: each mistake can still be made, and its tests exist. `nox -s mutants` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tests.mutants import MUTANTS, ROOT, Mutant


@cache
def source(name: str) -> str:
    return (ROOT / name).read_text() if (ROOT / name).exists() else ""


def complaints(mutant: Mutant) -> Iterator[str]:
    text = source(mutant.file)
    for old, new in mutant.changes:
        if old not in text:
            yield f"{mutant.file} has changed: say how to break it now"
        text = text.replace(old, new)
    if mutant.file.endswith(".py"):
        try:
            compile(text, mutant.file, "exec")  # otherwise, the tests would fail because of the syntax, not the mistake
        except SyntaxError as error:
            yield f"{mutant.file} is no longer Python: {error}"
    for name in mutant.tests:
        path, _, test = name.partition("::")
        if not source(path):
            yield f"{path} does not exist"
        elif test and f"def {test.partition('[')[0]}(" not in source(path):
            yield f"{path} has no test {test}"


def test_every_mutant_can_be_applied_and_its_tests_exist():
    found = [f"{mutant.mistake}: {complaint}" for mutant in MUTANTS for complaint in complaints(mutant)]
    assert found == [], "\n".join(["", *found])
    assert len(MUTANTS) > 300
