"""The order of the pages. A folder represents all of its pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath as Path

Section = tuple[str, tuple[str, ...]]

NAVIGATION: tuple[Section, ...] = (
    ("Home", ("docs/index.md",)),
    (
        "Start",
        (
            "docs/install.md",
            "docs/README.md",
            "docs/tutorials",
            "docs/flask.md",
            "docs/django.md",
            "docs/fastapi.md",
            "docs/sqlalchemy.md",
            "docs/django-tasks.md",
            "docs/sql.md",
            "examples/flask_shop/README.md",
            "examples/two_services/README.md",
            "examples/django_shop/README.md",
            "examples/fastapi_shop/README.md",
        ),
    ),
    (
        "Write tasks",
        (
            "docs/consumers.md",
            "docs/retries.md",
            "docs/timeouts.md",
            "docs/results.md",
            "docs/progress.md",
            "docs/steps.md",
            "docs/batches.md",
            "docs/schedules.md",
            "docs/hooks.md",
            "docs/webhooks.md",
            "docs/inbox.md",
            "docs/orm.md",
            "docs/testing.md",
            "docs/recipes",
        ),
    ),
    (
        "Operate",
        (
            "docs/operate/run-a-worker.md",
            "docs/operate/threads-and-processes.md",
            "docs/operate/stop-and-deploy.md",
            "docs/operate/systemd.md",
            "docs/operate/containers.md",
            "docs/operate/kubernetes.md",
            "docs/operate/probes.md",
            "docs/autoscaling.md",
            "docs/operate/unknown-tasks.md",
            "docs/operate/several-databases.md",
            "docs/operate/server-settings.md",
            "docs/operate/windows-and-macos.md",
            "docs/troubleshooting/symptoms.md",
            "docs/troubleshooting/errors.md",
            "docs/operate/why-does-it-not-run.md",
            "docs/operate/change-a-task.md",
            "docs/operate/dead-letters.md",
            "docs/operate/watch-the-queues.md",
            "docs/inspecting.md",
            "docs/dashboard.md",
            "docs/django-admin.md",
            "docs/monitoring.md",
            "docs/logging.md",
            "docs/tracing.md",
            "docs/operate/follow-events.md",
            "docs/operate/verify.md",
            "docs/operate/outages.md",
            "docs/operate/back-up-and-restore.md",
            "docs/operate/retention.md",
            "docs/operate/partitions.md",
            "docs/operate/schedules.md",
            "docs/roles.md",
            "docs/upgrading.md",
            "docs/operate",
            "docs/how-to",
        ),
    ),
    ("Move", ("docs/from-celery.md", "docs/from-procrastinate.md", "docs/from-django-tasks-db.md", "docs/migrating")),
    ("Reference", ("docs/reference.md", "docs/reference", "docs/command-line.md", "docs/glossary.md")),
    ("Explanation", ("docs/explanation",)),
    ("Project", ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/decisions/README.md", "docs/decisions")),
)
"""The sections of the site, each with pages and folders in the repository."""


def sections(titles: Mapping[Path, str]) -> Iterator[tuple[str, list[Path]]]:
    """Yield each section with its pages. A page that two entries name is listed only for the first of them.

    Raises LookupError if no entry covers a page, because readers would not find that page.
    """
    left = dict.fromkeys(sorted(titles))
    for title, entries in NAVIGATION:
        pages = [page for entry in entries for page in _covered(Path(entry), left)]
        pages = list(dict.fromkeys(pages))
        for page in pages:
            del left[page]
        yield title, pages
    if left:
        raise LookupError(f"The navigation lacks {', '.join(map(str, left))}: add them to website/navigation.py.")


def _covered(entry: Path, pages: Mapping[Path, None]) -> list[Path]:
    return [page for page in pages if page == entry or entry in page.parents]
