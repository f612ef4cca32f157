"""A process of test_dashboard_page.py that runs the page's Django project in the working directory."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import urlencode

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="of a test",
    USE_TZ=True,
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF="urls",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": "project.db",
            "ATOMIC_REQUESTS": True,  # the page's own transaction must not lock out the dashboard
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"},
        }
    },
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "outboxq.contrib.django",
    ],
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
        "django.middleware.gzip.GZipMiddleware",
    ],
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
)
sys.path.insert(0, "")
django.setup()

from django.contrib.auth.models import Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django.urls import include, path  # noqa: E402

from outboxq.contrib.django import outboxes  # noqa: E402
from outboxq.contrib.django.dashboard import ENQUEUE, VIEW, dashboard_urls, permission_of  # noqa: E402
from outboxq.model import NewTask  # noqa: E402
from outboxq.model.schedules import NewSchedule  # noqa: E402
from outboxq.model.uuid7 import uuid7  # noqa: E402
from outboxq.operating.verb import Noun  # noqa: E402
from outboxq.operating.verbs import VERBS  # noqa: E402
from outboxq.web import freshness  # noqa: E402

ACT = sorted({ENQUEUE, *(permission_of(one) for one in VERBS)})
OF_QUEUES = {permission_of(one) for one in VERBS if one.noun is Noun.QUEUE}
PAGE = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()


def user(name: str, *permissions: str) -> Client:
    """Return a browser in which this person is logged in."""
    made = User.objects.create_user(name)
    for one in permissions:
        app, _, codename = one.partition(".")
        made.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    found = Client(enforce_csrf_checks=True)
    found.force_login(made)
    return found


def csrf(text: str) -> str:
    return re.search(r'name="csrf" value="([^"]+)"', text)[1]


def below(prefix: str, **options: object) -> ModuleType:
    """Return the URLs of a project that has the dashboard at another path."""
    found = ModuleType("urls_below")
    found.urlpatterns = [path(prefix, include(dashboard_urls(**options)))]
    return found


def main() -> None:
    freshness.AGES = 10**9  # in seconds; by default, a page is rendered again every 60 seconds
    call_command("migrate", verbosity=0)
    outboxes["default"].store.queues.pause("mail/täglich", create=True)
    assert all(f"`{one}`" in PAGE for one in (VIEW, *ACT)), "the page must name the permissions"

    stranger = Client().get("/outboxq/queues?a=b")
    assert (stranger.status_code, stranger["Location"]) == (302, "/accounts/login/?next=/outboxq/queues%3Fa%3Db")
    logging.disable(logging.WARNING)
    someone = user("someone")
    refused, as_data = someone.get("/outboxq/queues"), someone.get("/outboxq/api/queues.json")
    assert (refused.status_code, as_data.status_code) == (403, 403)
    for words in (f"You need the permission {VIEW}", "An administrator can give it to you"):
        assert words in refused.text
        assert words in as_data.json()["error"]
    assert "mail/" not in refused.text
    style = re.search(r'href="(/outboxq/static/[^"]+\.css)"', refused.text)[1]
    assert someone.get(style).status_code == 200, "the refusal must be a page of the dashboard"
    assert someone.post("/outboxq/queue/pause", {"name": "mail"}).status_code == 403
    reader = user("reader", VIEW)
    actor = user("actor", VIEW, *OF_QUEUES)
    other = user("other", VIEW, *(one for one in ACT if one not in OF_QUEUES))
    for client in (reader, actor):
        page = client.get("/outboxq/")
        assert page.status_code == 200, page.text
        assert page["Content-Security-Policy"].startswith("default-src 'none'")
        assert 'href="/outboxq/queues"' in page.text
        style = re.search(r'href="(/outboxq/static/[^"]+\.css)"', page.text)[1]
        assert client.get(style)["Content-Type"].startswith("text/css")
        tag = {"HTTP_IF_NONE_MATCH": page["ETag"], "HTTP_ACCEPT_ENCODING": "gzip"}
        assert client.get("/outboxq/", **tag).status_code == 304
        assert client.head("/outboxq/").status_code == 200
        assert client.get("/outboxq/nothing").status_code == 404
        assert client.get("/outboxq/api/queues.json").json()
    page = actor.get("/outboxq/queue", {"name": "mail/täglich"})
    assert page.status_code == 200, page.text
    action = re.search(r'action="(/outboxq/[^"]*resume[^"]*)"', page.text)[1]

    def resume(client: Client, token: str) -> int:
        sent = urlencode({"csrf": token, "name": "mail/täglich"})
        return client.post(action, sent, content_type="application/x-www-form-urlencoded").status_code

    assert (resume(actor, "wrong"), resume(reader, csrf(page.text))) == (403, 403)
    assert "resume" not in other.get("/outboxq/queue", {"name": "mail/täglich"}).text.replace("queue resume", "")
    outboxes["default"].store.schedules.put(NewSchedule(name="n", task_name="shop.n", rule="0 2 * * *"))
    assert resume(other, csrf(other.get("/outboxq/schedule", {"name": "n"}).text)) == 403
    assert [one.queue for one in outboxes["default"].store.queues.settings() if one.paused_at] == ["mail/täglich"]
    assert resume(actor, csrf(page.text)) == 303
    assert 'class="notice' in actor.get("/outboxq/").text
    assert not [one for one in outboxes["default"].store.queues.settings() if one.paused_at]
    with override_settings(ROOT_URLCONF=below("<slug:shop>/tasks/")):
        assert 'href="/berlin/tasks/queues"' in reader.get("/berlin/tasks/").text
    task = NewTask(id=uuid7(), task_name="n", args='{"a": "bob@example.org"}')
    outboxes["default"].store.enqueue(task)
    User.objects.filter(username="actor").update(is_staff=True)
    show_to_staff = eval(re.search(r"show_arguments=(lambda .*?)\)", PAGE)[1])
    cases = [(False, [False, False]), (True, [True, True]), (show_to_staff, [False, True])]
    for show_arguments, expected in cases:
        with override_settings(ROOT_URLCONF=below("shown/", show_arguments=show_arguments)):
            texts = [client.get(f"/shown/tasks/{task.id}").text for client in (reader, actor)]
            assert ["bob@example.org" in text for text in texts] == expected
    connections.close_all()
    print("done")


main()
