"""The page about installing lists the requirements that the package declares. To update its tables: python -m tests.docs.test_install_page"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from outboxq.database.dialects import SQLITE_MINIMUM
from tests.docs.tables import between, put_between
from tests.postgres import NEWEST, PACKAGED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "install.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_DEVELOPERS = {"test", "lint", "site", "types", "dev"}
"""Extras for people who change outboxq. CONTRIBUTING.md describes them."""

EXTRAS = {
    "postgresql": "workers, commands and enqueues on PostgreSQL",
    "pydantic": "models as arguments and results",
    "django": "[Django](django.md), and [Django's own tasks](django-tasks.md)",
    "flask": "[Flask](flask.md)",
    "prometheus": "`outboxq worker --metrics-port`: [Monitoring](monitoring.md)",
    "reload": "`outboxq worker --reload`, which restarts when your code changes",
    "opentelemetry": "[traces and metrics in OpenTelemetry](tracing.md#opentelemetry)",
    "web": "[the dashboard](dashboard.md)",
    "rabbitmq": "[RabbitMQ](how-to/brokers.md#rabbitmq)",
    "redis": "[Redis Streams](how-to/brokers.md#redis-streams)",
    "nats": "[NATS JetStream](how-to/brokers.md#nats-jetstream)",
    "kafka": "[Kafka](how-to/brokers.md#kafka)",
    "aws": "[Amazon SQS and SNS](how-to/brokers.md#amazon-sqs-and-sns)",
    "sentry": "[traces, errors and monitors in Sentry](tracing.md#sentry)",
}
NAMES = {"sqlalchemy": "SQLAlchemy", "alembic": "Alembic", "django": "Django", "flask": "Flask", "rich": "Rich"}
REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(\[[\w,]+\])?(?P<bounds>[^;]*?)\s*(;\s*(?P<marker>.+))?")


def extras() -> str:
    lines = ["| extra | for | installs |", "|---|---|---|"]
    for name, needs in PROJECT["optional-dependencies"].items():
        if name not in OF_DEVELOPERS:
            lines.append(f"| `{name}` | {EXTRAS[name]} | {', '.join(map(_needed, needs))} |")
    return "\n".join(lines) + "\n"


def versions() -> str:
    pythons = list(_pythons())
    lines = [
        "| | works with |",
        "|---|---|",
        f"| Python | {pythons[0]} to {pythons[-1]} |",
        f"| PostgreSQL | {min(PACKAGED)} and later; tested on {min(PACKAGED)} to {NEWEST} |",
        f"| SQLite | {'.'.join(map(str, SQLITE_MINIMUM))} and later |",
    ]
    optional = PROJECT["optional-dependencies"]
    offered = [one for name in optional if name not in OF_DEVELOPERS for one in optional[name]]
    for requirement in dict.fromkeys((*PROJECT["dependencies"], *offered)):
        found = REQUIREMENT.fullmatch(requirement)
        assert found, requirement
        lines.append(f"| {NAMES.get(found['name'], found['name'])} | {_words(found['bounds'])} |")
    return "\n".join(lines) + "\n"


def _pythons() -> Iterator[str]:
    for classifier in PROJECT["classifiers"]:
        if found := re.search(r"Python :: (3\.\d+)$", classifier):
            yield found[1]


def _needed(requirement: str) -> str:
    found = REQUIREMENT.fullmatch(requirement)
    assert found, requirement
    on = {None: "", "python_version < '3.12'": " (before Python 3.12)"}[found["marker"]]
    return f"{found['name']} {_words(found['bounds'])}{on}"


def _words(bounds: str) -> str:
    """Return `>=2.0,<3` as `2.0 and later, below 3`."""
    least, _, below = bounds.partition(",")
    assert re.fullmatch(r">=[\d.]+", least), bounds
    assert re.fullmatch(r"(<[\d.]+)?", below), bounds
    return f"{least[2:]} and later" + (f", below {below[1:]}" if below else "")


TABLES = {"extras": extras, "versions": versions}


def test_the_tables_match_the_package_metadata():
    for name, table in TABLES.items():
        assert between(PAGE, name) == table(), "run: python -m tests.docs.test_install_page"


def test_the_install_commands_name_existing_extras():
    known = set(PROJECT["optional-dependencies"])
    typed = re.findall(r"pip install (?:-\S+ )*'?([\w-]+)(?:\[([\w,]+)\])?", PAGE.read_text())
    assert typed
    for name, wanted in typed:
        assert name == PROJECT["name"]
        assert set(filter(None, wanted.split(","))) <= known - OF_DEVELOPERS


def test_the_oldest_listed_python_is_the_required_minimum():
    least, *_ = _pythons()
    assert PROJECT["requires-python"].startswith(f">={least}")


if __name__ == "__main__":
    for each, table in TABLES.items():
        put_between(PAGE, each, table())
