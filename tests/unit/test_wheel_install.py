"""The wheel does not need the checkout from which it was built."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from tests import wheel

pytestmark = pytest.mark.apart


@pytest.mark.current  # in older releases of SQLAlchemy, `alembic check` does not recognize SQLite's numbering as an Identity
def test_the_installed_wheel_works_without_the_checkout(tmp_path, capsys):
    packages = Path(sysconfig.get_path("purelib"))
    wheel.main([str(tmp_path), "--dependencies", str(packages), "--no-demo"])
    assert "works on its own" in capsys.readouterr().out

    # The checkout does not help either: without its own migrations, the package does not work.
    (package,) = (tmp_path / "venv").rglob("site-packages/outboxq")
    shutil.rmtree(package / "_migrations")
    with pytest.raises(AssertionError, match=r"upgrade sqlite:///x\.db ended with 1"):
        wheel.check(tmp_path / "venv" / "bin" / "python", tmp_path, demo=False)
