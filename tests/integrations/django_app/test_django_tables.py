"""`migrate` and the other commands, on tables of every age."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.in_turn


def test_the_tables_live_and_die_by_manage_py(project):
    project.settings = {"USE_TZ": False, "TIME_ZONE": "Asia/Kolkata"}
    assert project.python("life.py").endswith("to the end\n")
