"""docs/django-admin.md: its code runs in a Django project, which also confirms its statements about permissions.

Each run does this with the other tests of the admin (tests/integrations/django_admin). A full run also does it here, on SQLite.
"""

import pytest

from tests.integrations.django_admin.child import manage


@pytest.mark.full
def test_the_code_of_the_page_works():
    code, said = manage("sqlite://", "test", "admin_cases.Documented")
    assert code == 0, said
    assert "Ran 2 tests" in said
