"""The words in identifiers and docstrings: they must be terms of the field, and sentences must name their subject first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import sources

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "outboxq"

CLEAN = (
    "cli",
    "contrib",
    "integration",
    "model",
    "testing",
    "context",
    "errors",
    "migrations",
    "orm",
    "outbox",
    "retry",
    "task",
    "payload",
    "worker",
    "web",
    "store",
)
"""Parts of the package that keep these rules."""
TEXTS = (*CLEAN, "database")
"""Parts whose texts keep these rules. Identifiers in `database` are also names in SQL, which do not change."""
NOT_YET: set[str] = set()
"""Modules in those parts that do not keep the rules yet."""

OPENERS = re.compile(r"(Of|By|In|What|Who|Whose|Which|Where|Whether|How|That|As)\b")
"""First words that leave the subject of a docstring open."""

PHRASES = re.compile(
    r"\b(crew|lying|whoever|nobody|somebody|anybody|anew|by hand|of ours|said of|told of|(is|are|was|were|be|been) (said|told(?! to\b))"
    r"|rooms|the house|(?<!dead )letters?)\b",
    re.IGNORECASE,
)
"""Words and phrases that a reader must decode."""

NAMES = re.compile(
    r"(^|_)(crew|lying|nowhere|nobody|whoever|by_hand|told|said|room|holder|fold|(?<!dead_)letters?)(_|$)",
    re.IGNORECASE,
)
"""Parts of identifiers that are not terms of the field."""

STATEMENTS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of the modules in these parts, by path."""
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        name: sources.tree(path)
        for name, path in paths.items()
        if part(name) in TEXTS and name not in NOT_YET and "migrations/0" not in name
    }


def part(name: str) -> str:
    return name.partition("/")[0].removesuffix(".py")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings, and texts below attributes, with their line numbers."""
    for node in sources.of_kind(tree, *STATEMENTS):
        for one in node.body:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, one.value.value.strip()


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the identifiers that the module itself introduces, with their line numbers."""
    for node in sources.of_kind(tree, ast.ClassDef, ast.FunctionDef, ast.arg, ast.Name, ast.Attribute):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield node.lineno, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def odd_openers(tree: ast.Module) -> list[str]:
    return [f"{line}: {text[:70]}" for line, text in docstrings(tree) if OPENERS.match(text)]


def odd_phrases(tree: ast.Module) -> list[str]:
    return [f"{line}: {found[0]} in: {text[:70]}" for line, text in docstrings(tree) if (found := PHRASES.search(text))]


def odd_names(tree: ast.Module) -> list[str]:
    return [f"{line}: {name}" for line, name in names(tree) if NAMES.search(name)]


RULES = (odd_openers, odd_phrases, odd_names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_clean_parts_have_no_violations(rule):
    parts = CLEAN if rule is odd_names else TEXTS
    found = {name: rule(tree) for name, tree in modules().items() if part(name) in parts}
    assert [f"{name}:{line}" for name, lines in found.items() for line in lines] == []


def test_the_list_of_parts_is_complete():
    assert {part(name) for name in modules()} == set(TEXTS)


BAD = {
    odd_openers: (
        '"""Of the task."""',
        'class A:\n    x = 1\n    """How many."""',
        'def f():\n    """Whether it is."""',
    ),
    odd_phrases: (
        '"""The crew."""',
        '"""Letters that Failed."""',
        '"""Ask whoever wrote it."""',
        '"""A limit that is said."""',
    ),
    odd_names: ("letters = 1", "def by_hand(): ...", "def f(holder): ...", "class TestRoom: ...", "self.told = 1"),
}
GOOD = '"""Return the dead letters, in the order of their failures."""\ndead_letters = 1\ndef find_dead_letter(): ...'


@pytest.mark.parametrize(("rule", "source"), [(rule, source) for rule in RULES for source in BAD[rule]])
def test_each_rule_finds_its_bad_examples(rule, source):
    assert rule(ast.parse(source))
    assert not rule(ast.parse(GOOD))
