"""The tools' configuration files, which must agree with pyproject.toml on Python versions, programs and line length."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
TOOLS = {"test", "lint", "site", "types", "dev"}
"""Extras for people who work on the package."""
WITH_ANOTHER = {"opentelemetry-api", "django-tasks"}
"""Packages whose newest release is installed with another package, or which another package replaces."""
DISTRIBUTIONS = {"codespell_lib": "codespell"}
"""Modules that are run, and whose distribution has another name."""


def test_the_workflow_installs_the_brokers_and_runs_what_ci_runs():
    install, *others = re.findall(r"^ +- run: (.+)$", WORKFLOW, re.MULTILINE)
    assert install.endswith("apt-get install -y rabbitmq-server redis-server nats-server")
    assert others == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_workflow_tests_every_python_version_of_the_package():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    (matrix,) = re.findall(r"python: \[(.+)\]", WORKFLOW)
    assert re.findall(r'"(.+?)"', matrix) == named
    assert (
        re.findall(r'"(3\.\d+)"', (ROOT / "noxfile.py").read_text().partition("PYTHONS = ")[2].splitlines()[0]) == named
    )


def test_the_hooks_run_only_programs_that_the_extras_install():
    extras = PYPROJECT["project"]["optional-dependencies"]
    installed = {re.split(r"[\[<>=]", one)[0] for one in (*extras["lint"], *extras["types"])}
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert len(hooks) == 4
    for hook in hooks:
        (module,) = re.findall(r"^\.venv/bin/python -m (\w+)", hook)
        assert DISTRIBUTIONS.get(module, module) in installed


def test_the_nox_sessions_install_each_optional_package():
    """Types are checked with every extra, and the newest releases of all packages are tested."""
    extras = {name: of for name, of in PYPROJECT["project"]["optional-dependencies"].items() if name not in TOOLS}
    text = (ROOT / "noxfile.py").read_text()
    typed = re.findall(r'"\.\[([\w,]+)\]"', text.partition("def types(")[2].partition("session.run(")[0])
    assert set(",".join(typed).split(",")) - {"types"} == extras.keys()
    _, _, newest = text.partition("def newest(")
    packages = [*PYPROJECT["project"]["dependencies"], *(one for of in extras.values() for one in of)]
    names = {re.split(r"[\[<>=]", one)[0] for one in packages} - WITH_ANOTHER
    upgraded = re.findall(r'"([\w-]+)(?:\[\w+\])?"', newest.partition("session.run(")[0])
    assert names - set(upgraded) == set()


def test_an_editor_breaks_lines_where_the_formatter_does():
    (length,) = re.findall(r"^max_line_length = (\d+)$", (ROOT / ".editorconfig").read_text(), re.MULTILINE)
    assert int(length) == PYPROJECT["tool"]["ruff"]["line-length"]


def test_text_files_have_no_trailing_spaces_and_end_with_a_line_feed():
    """Lines have no trailing spaces, and the file ends with one line feed."""
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".cfg", ".ini", ".txt"}
    folders = ("outboxq", "tests", "docs", "alembic", "benchmarks", "examples", ".github")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    assert len(paths) > 400
    wrong = [
        str(path.relative_to(ROOT))
        for path in paths
        if "__pycache__" not in path.parts
        and (text := path.read_text())
        and (re.search(r"[ \t]+$", text, re.MULTILINE) or not text.endswith("\n") or "\r" in text)
    ]
    assert wrong == []
