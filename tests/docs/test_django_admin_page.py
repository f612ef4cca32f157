"""docs/django-admin.md: its code is run in a Django project, and what it says of permissions is looked up there.

Each run does so with the rest of the admin (tests/integrations/django_admin), the full one also here, on SQLite.
"""

import pytest

from tests.integrations.django_admin.child import manage


@pytest.mark.full
def test_the_page_does_what_it_says():
    code, said = manage("sqlite://", "test", "admin_cases.Documented")
    assert code == 0, said
    assert "Ran 2 tests" in said
