"""The contents of the distributions: the wheel contains only the package and its migrations, and the sdist contains all files under version
control.
"""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import forked
from tests.wheel import build, run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_contains_the_migrations_and_their_ini(names):
    brought = {name for name in names if name.startswith("outboxq/_migrations/")}
    versions = {
        f"outboxq/_migrations/alembic/versions/{file.name}" for file in (ROOT / "alembic/versions").glob("*.py")
    }
    assert versions
    assert brought == {
        "outboxq/_migrations/alembic.ini",
        "outboxq/_migrations/alembic/env.py",
        "outboxq/_migrations/alembic/script.py.mako",
        *versions,
    }


def test_the_wheel_is_marked_as_typed(names):
    assert "outboxq/py.typed" in names


def test_every_module_of_the_package_is_in_the_wheel(names):
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "outboxq").rglob("*.py")}
    assert modules <= names


def test_each_template_and_static_file_is_in_the_wheel(names):
    files = {name for name in kept() if name.startswith("outboxq/") and not name.endswith(".py")}
    assert {"outboxq/web/templates/base.html", "outboxq/web/static/style.css"} <= files
    assert files - names == set()


def test_the_licences_are_in_the_wheel(names):
    """The wheel contains the license of the package and the license of the bundled JavaScript."""
    assert {name.partition(".dist-info/licenses/")[2] for name in names} - {""} == {
        "LICENSE",
        "outboxq/web/static/htmx.LICENSE.txt",
    }


def test_nothing_else_is_in_the_wheel(names):
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"outboxq", "pytest_outboxq.py"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".db")) or "/test_" in name]


def test_the_installed_wheel_finds_its_own_migrations(wheel, tmp_path):
    """The script runs outside a checkout, and does not use an editable install."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from outboxq import migrations; "
        "migrations.upgrade('sqlite:///here.db'); print(migrations.script_location(), migrations.current('sqlite:///here.db'))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "site")]
    done = forked.run(command, warm=forked.PACKAGES, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith(str(tmp_path / "site" / "outboxq" / "_migrations" / "alembic")), done.stderr


def test_the_alembic_script_works_with_the_ini_of_the_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    ini = tmp_path / "site" / "outboxq" / "_migrations" / "alembic.ini"
    command = [sys.executable, "-m", "alembic", "-c", str(ini), "-x", "url=sqlite:///here.db", "upgrade", "head"]
    done = forked.run(command, warm=forked.PACKAGES, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here.db").exists()


def kept() -> set[str]:
    """Return all files under version control. In an unpacked sdist, return all files that are in it."""
    if (ROOT / ".git").exists():
        return set(run(["git", "ls-files"], cwd=ROOT).split())
    files = {path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()}
    made = {".venv", "__pycache__", "PKG-INFO", "dist"}
    return {
        str(file)
        for file in files
        if not made & set(file.parts) and not re.match(r"\.\w+_cache|\.hypothesis", file.parts[0])
    }


def test_the_sdist_contains_exactly_the_files_in_git(tmp_path):
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], cwd=ROOT)
    (sdist,) = tmp_path.glob("outboxq-*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    files = kept()
    assert {
        "LICENSE",
        "docs/operate/retention.md",
        "outboxq/web/templates/base.html",
        "outboxq/web/static/style.css",
    } <= files
    assert files - packed == set()
    assert packed - files <= {"PKG-INFO"}


def test_each_dependency_has_an_upper_bound():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [one for one in dependencies if ",<" not in one] == []


def test_the_tests_named_on_the_security_page_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 10
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), f"{path}::{test}"
