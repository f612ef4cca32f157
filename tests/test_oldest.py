"""The contract on the oldest releases that pyproject.toml admits, in a new environment installed from the package index.

This test runs a part of it: every way to write, claim, end and recover a task, and the schema, with one variant of each test.
`nox -s oldest` runs the whole contract.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests import wheel

ROOT = Path(__file__).parents[1]
OLDEST = ROOT / "tests" / "oldest.txt"
RUN_WITH = ("postgresql", "pydantic", "django", "flask", "reload", "opentelemetry", "sentry", "prometheus", "web")
"""The extras that a running application may have. The others are for tools."""

WITH_THEM = ("psycopg-binary", "flask-sqlalchemy", "fastapi", "opentelemetry-sdk", "anyio")
"""Packages that are also pinned because others depend on them: a part of psycopg, packages of the tests, and a part of Starlette."""

PART = [
    "tests/contract/test_schema_golden.py",
    "tests/contract/test_enqueue.py",
    "tests/contract/test_claim.py",
    "tests/contract/test_finish.py",
    "tests/contract/test_recovery.py",
    "tests/unit/test_retry.py",
]

LONG = "clock or outage or many_processes or thousand"
"""Tests that take long and run no statements that the others do not run."""


def pinned():
    """Return the oldest release of each package, by name. The first line for a package counts."""
    lines = [line.partition(";")[0].strip() for line in OLDEST.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in reversed(lines) if line)


def admitted():
    """Return the lower bound of each package that is installed with outboxq or with an extra for running applications."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for name in RUN_WITH for one in project["optional-dependencies"][name])]
    found = (re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", one) for one in wanted)
    return {one[1]: one[2] for one in found}


def release(version):
    """Return a version as numbers, without trailing zeros."""
    return tuple(int(part) for part in re.sub(r"(\.0)+$", "", version).split("."))


def test_the_pinned_oldest_releases_match_the_lower_bounds():
    found = {name: release(one) for name, one in pinned().items() if name not in WITH_THEM}
    assert found == {name: release(one) for name, one in admitted().items()}


@pytest.mark.apart
@pytest.mark.timeout(600)  # the package index may be slow
def test_the_contract_tests_pass_on_the_oldest_releases(cluster, tmp_path, pytestconfig):
    python = wheel.environment(tmp_path / "venv")
    built = wheel.build(tmp_path)  # with the build backend of this environment: pip would install another one
    packages = [f"{built}[postgresql]", "pytest>=9", "pytest-timeout", "pytest-xdist", "hypothesis"]
    # Most modules are never imported, so they need not be compiled here.
    wheel.run([*wheel.installer(python), "install", "-q", "--no-compile", "-c", OLDEST, *packages], cwd=tmp_path)
    names = ("alembic", "tenacity", "click", "rich")
    version = "import importlib.metadata, sys; print(*map(importlib.metadata.version, sys.argv[1:]))"
    assert wheel.run([python, "-c", version, *names], cwd=tmp_path).split() == [pinned()[name] for name in names]
    told = wheel.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",  # a second process would import and compile everything again
            "-p",
            "no:cacheprovider",
            "-m",
            "not campaign and not current and not slow",
            "--in-turn",
            *([] if pytestconfig.getoption("full") else ["-p", "tests.one_variant", "-k", f"not ({LONG})"]),
            *PART,
        ],
        cwd=ROOT,
        OUTBOXQ_TEST_POSTGRES_URL=cluster.url,
    )
    assert re.search(r"^\d{3,} passed", told, re.MULTILINE), told
