"""The wheel does not need the checkout it was made of."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from tests import wheel

pytestmark = pytest.mark.apart


@pytest.mark.current  # `alembic check` of an older SQLAlchemy takes SQLite's numbering for no Identity
def test_the_wheel_is_installed_and_used_where_nothing_else_is(tmp_path, capsys):
    packages = Path(sysconfig.get_path("purelib"))
    wheel.main([str(tmp_path), "--dependencies", str(packages), "--no-demo"])
    assert "works on its own" in capsys.readouterr().out

    # Nor does the checkout help it out: without its own migrations it would not work.
    (package,) = (tmp_path / "venv").rglob("site-packages/outboxq")
    shutil.rmtree(package / "_migrations")
    with pytest.raises(AssertionError, match=r"upgrade sqlite:///x\.db ended with 1"):
        wheel.check(tmp_path / "venv" / "bin" / "python", tmp_path, demo=False)
