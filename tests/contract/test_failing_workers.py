"""A live worker that an error keeps from its work reports this in the database, and every explanation repeats it."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from click.testing import CliRunner
from sqlalchemy import make_url

from outboxq import Outbox
from outboxq.cli import main
from outboxq.store import HealthLimits, Reason
from tests.contract import helpers
from tests.waiting import until

FAILURE = "cannot claim tasks: DiskFull (53100): could not extend file"


def failing(database, **said):
    worker_id = uuid4()
    database.frozen.workers.register(worker_id, label="host:7", concurrency=1, task_names=["tests.work"])
    since = database.clock()
    database.frozen.workers.describe(worker_id, failure=FAILURE, failing_since=since, **said)
    return worker_id


def test_a_worker_that_cannot_claim_is_a_problem_and_the_reason_why_a_task_waits(database):
    task, worker_id = database.add(), failing(database)
    database.clock.advance(40)
    [problem] = database.frozen.health(HealthLimits())
    assert (problem.rule, problem.subjects, problem.tasks) == ("worker_failing", ("host:7",), 1)
    assert problem.sentence.startswith(f"the worker host:7 {FAILURE}; this began 40 s ago; the disk of ")
    assert [one.command for one in problem.cures] == [("workers", "show", str(worker_id)), ("db", "sizes")]
    assert database.frozen.health(HealthLimits(worker_failing=False)) == []
    why = database.frozen.explain(task.id)
    assert why.reason is Reason.DUE
    assert why.sentence == f"it is due and can start, but worker host:7 {FAILURE}, since 2030-01-01 12:00:00 UTC"
    assert why.cures[0].command == ("workers", "show", str(worker_id))
    other = uuid4()
    database.frozen.workers.register(other, label="host:8", concurrency=1, task_names=["tests.work"])
    assert database.frozen.explain(task.id).sentence == "it is due and can start; the next claim will take it"
    database.frozen.workers.describe(worker_id)
    assert database.frozen.health(HealthLimits()) == []


def sentence_about(database, failure):
    worker_id = uuid4()
    database.frozen.workers.register(worker_id, label="host:7", concurrency=1, task_names=["tests.work"])
    database.frozen.workers.describe(worker_id, failure=failure, failing_since=database.clock())
    return database.frozen.health()[0].sentence


def test_a_full_disk_is_reported_with_its_location_and_a_cure(database):
    if database.name == "sqlite":
        said = sentence_about(database, "cannot claim tasks: OperationalError: database or disk is full")
        place = f"the disk of the SQLite file {make_url(database.url).database}"
    else:
        said = sentence_about(database, f'{FAILURE} "base/5/16384": No space left on device')
        [(directory,)] = database.rows("SHOW data_directory")
        place = f"the disk of the server's data directory, {directory},"
    assert (
        f"; {place} is full: delete other files on that disk, or enlarge the disk; `outboxq prune` needs free space too"
        in said
    )


def test_a_full_disk_of_a_tablespace_is_named_by_its_location(postgresql):
    name = f"roomy_{uuid4().hex}"
    with postgresql.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET allow_in_place_tablespaces = on")
        connection.exec_driver_sql(f"CREATE TABLESPACE {name} LOCATION ''")
        try:
            [(oid,)] = postgresql.rows(f"SELECT oid FROM pg_tablespace WHERE spcname = '{name}'")
            said = sentence_about(postgresql, f'{FAILURE} "pg_tblspc/{oid}/PG_15_202209061/5/16384"')
        finally:
            connection.exec_driver_sql(f"DROP TABLESPACE {name}")
            connection.exec_driver_sql("RESET allow_in_place_tablespaces")
    assert f"; the disk of the tablespace '{name}', pg_tblspc/{oid}, is full: delete other files on that disk" in said


def test_a_different_failure_does_not_mention_a_disk(database):
    assert "disk" not in sentence_about(database, "cannot claim tasks: InternalError (XX000): no")


def test_a_worker_that_cannot_write_outcomes_is_reported_for_its_running_task(database):
    database.frozen.workers.register(database.worker, label="host:7", concurrency=1, task_names=["tests.work"])
    claim = helpers.claimed(database)
    words = "cannot write the outcomes of tasks: DiskFull"
    database.frozen.workers.describe(database.worker, failure=words, failing_since=database.clock())
    assert database.frozen.explain(claim.id).sentence.endswith(f"unless the worker extends it; the worker {words}")


def test_workers_list_and_workers_show_print_the_failure(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_DATABASE_URL", database.url)
    worker_id = uuid4()
    database.store.workers.register(worker_id, label="host:7", concurrency=1, task_names=[])
    since = database.store.now() - timedelta(minutes=5)
    database.store.workers.describe(worker_id, failure=FAILURE, failing_since=since)
    assert "cannot claim tasks" in CliRunner().invoke(main, ["workers", "list"]).output
    assert (
        f"{FAILURE}, since {since:%Y-%m-%d %H:%M}"
        in CliRunner().invoke(main, ["workers", "show", str(worker_id)]).output
    )


def refuse_claims(database):
    """Make the database refuse claims, like a full disk, but no other writes. Returns the statement that allows claims again."""
    if database.name == "sqlite":
        database.run(
            "CREATE TRIGGER full BEFORE INSERT ON task_leases BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
        return "DROP TRIGGER full"
    database.run("""CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'the disk is full'; END $$""")
    database.run("CREATE TRIGGER full_disk BEFORE INSERT ON task_leases FOR EACH ROW EXECUTE FUNCTION full_disk()")
    return "DROP TRIGGER full_disk ON task_leases; DROP FUNCTION full_disk"


def test_a_worker_reports_that_its_claims_fail_until_they_work_again(database):
    outbox = Outbox(database.engine)
    done = []

    @outbox.task(name="work")
    def work() -> None:
        done.append(1)

    with helpers.workers(outbox, poll=0.05, drain_timeout=20) as start:
        allow = refuse_claims(database)
        work.using(outbox).enqueue()
        start(concurrency=1)
        until(lambda: any(one.failure for one in outbox.store.workers.list()))
        [found] = outbox.store.workers.list()
        assert found.failure.startswith("cannot claim tasks: ")
        assert found.failure.endswith("the disk is full")
        assert found.failing_since is not None
        [problem] = [one for one in outbox.store.health(HealthLimits()) if one.rule == "worker_failing"]
        assert found.label in problem.subjects
        for statement in allow.split("; "):
            database.run(statement)
        until(lambda: done and outbox.store.workers.list()[0].failure is None)
