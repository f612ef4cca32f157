"""The admin, tested in a separate Django project for each database."""

import re

import pytest

from tests.integrations.django_admin.child import PROJECT, manage

pytestmark = pytest.mark.in_turn


@pytest.fixture(params=["sqlite", "postgresql"])
def admin_database(request):
    """The database in which Django's tests create their tables: in memory, or empty on the server."""
    if request.param == "sqlite":
        yield "sqlite://"
        return
    cluster = request.getfixturevalue("cluster")
    url = cluster.create_database()
    yield url
    cluster.drop_database(url)


def test_the_admin_cases_pass(admin_database):
    code, said = manage(admin_database, "test", "admin_cases", "--keepdb", "--verbosity=2", "--timing")
    assert code == 0, said
    wanted = len(re.findall(r"^    def test_", (PROJECT / "admin_cases.py").read_text(), re.MULTILINE))
    assert f"Ran {wanted} tests" in said, said
    assert "skipped" not in said
    assert "System check identified no issues (0 silenced)" in said
