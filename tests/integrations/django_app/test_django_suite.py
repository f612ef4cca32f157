"""Django's own test runner on tests/integrations/django_app/project/shop/suite.py."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.in_turn


def test_the_project_passes_its_tests(project, tmp_path):
    default = project.databases["default"]
    if default["NAME"].startswith("/"):
        default["TEST"] = {"NAME": str(tmp_path / "test.db")}  # a worker needs a database file
    assert "\nOK\n" in project.manage("test", "--pattern", "suite.py", "--noinput", "-v", "2")
