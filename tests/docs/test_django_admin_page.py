"""docs/django-admin.md: its code is run in a Django project, and what it says of permissions is looked up there.

Here on SQLite; with the rest of the admin on both databases (tests/integrations/django_admin).
"""

from tests.integrations.django_admin.child import manage


def test_the_page_does_what_it_says(forks):
    code, said = manage(forks, "sqlite://", "test", "admin_cases.Documented")
    assert code == 0, said
    assert "Ran 2 tests" in said
