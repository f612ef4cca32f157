"""On PostgreSQL, each role needs exactly the privileges that `outboxq grants` gives it."""

from __future__ import annotations

import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from outboxq import Outbox, migrations
from outboxq.database.engine import make_engine
from outboxq.database.privileges import Feature, Kind, Role, rights
from outboxq.errors import NotPermitted, SchemaOutOfDate
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.store.rights import grant
from tests.loops import case
from tests.roles.acts import ACTS, Stage, waits_for_results


@pytest.fixture(scope="module")
def url(cluster, migrated_postgresql):
    url = cluster.create_database(template=migrated_postgresql)
    yield url
    cluster.drop_database(url)


def plain(url):
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def owner(url):
    with psycopg.connect(plain(url), autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(owner):
    name = f"outboxq_{uuid4().hex[:12]}"
    owner.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def stage(url, role):
    engine = make_engine(url)
    stage = Stage(Store(engine), make_url(url).set(username=role).render_as_string(hide_password=False))
    yield stage
    stage.close()
    stage.clear()
    engine.dispose()


def acts(role, features):
    """All acts of this role that need no features other than these."""
    return [act for (one, needs), found in ACTS.items() if one is role and needs <= features for act in found]


FEATURES = [frozenset(some) for n in range(len(Feature) + 1) for some in itertools.combinations(Feature, n)]
KINDS = [(Role.PRODUCER, features) for features in FEATURES] + [
    (role, frozenset()) for role in (Role.WORKER, Role.VIEWER, Role.OPERATOR)
]


def name_of(value):
    return str(value) if isinstance(value, str) else "+".join(sorted(value)) or "plain"


@pytest.mark.parametrize(("kind", "features"), ACTS, ids=name_of)
def test_each_role_can_do_its_work_with_the_granted_privileges(stage, role, kind, features):
    Store(stage.owner.bound_engine).rights.grant(kind, role, features)
    for act in ACTS[kind, features]:
        with case(act.__name__):
            act(stage)
        stage.clear()


MINIMAL = [
    frozenset(),
    *(frozenset({one}) for one in (Feature.EMIT, Feature.IDEMPOTENCY, Feature.RESULTS, Feature.BATCHES, Feature.INBOX)),
    frozenset({Feature.IDEMPOTENCY, Feature.REPLACE}),
    frozenset({Feature.RESULTS, Feature.BATCHES}),
]
NEEDED = {
    (kind, features): [
        right
        for right in rights(kind, features)
        if right.kind is not Kind.SCHEMA  # every role may use `public`
        and (not features or right not in rights(kind, features - {max(features)}))
    ]
    for kind, features in KINDS
    if kind is not Role.OPERATOR  # an operator has the privileges for any command
    and (kind is not Role.PRODUCER or features in MINIMAL)
}


@contextmanager
def quiet():
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def is_refused(error):
    causes = [error]
    while (error := error.__cause__ or error.__context__) is not None:
        causes.append(error)
    return any(
        isinstance(one, NotPermitted | psycopg.errors.InsufficientPrivilege)
        or (isinstance(one, DBAPIError) and getattr(one.orig, "sqlstate", None) == "42501")
        for one in causes
    ) or (isinstance(causes[0], AssertionError) and "is seen" in str(causes[0]))


@pytest.mark.parametrize(("kind", "features"), NEEDED, ids=name_of)
def test_each_granted_privilege_is_needed(stage, role, owner, kind, features):
    """Revoke each privilege, column by column. Only the acts decide, without the checks that come before a statement."""
    for one in rights(kind, features):
        owner.execute(grant(one, "public", role))
    order, needless = acts(kind, features)[::-1], []
    for right in NEEDED[kind, features]:
        for column in right.columns or (None,):
            part = replace(right, columns=(column,) if column else ())
            statement = grant(part, "public", role)
            owner.execute(statement.replace("GRANT", "REVOKE", 1).replace(" TO ", " FROM "))
            with quiet():
                act = next((act for act in order if refused(stage, act)), None)
            owner.execute(statement)
            if act is None:
                needless.append(part)
            else:  # this act probably needs the next privilege, too
                order = [act, *(other for other in order if other is not act)]
    assert needless == []


def refused(stage, act):
    stage.clear()
    stage.store = Store(stage.engine)
    stage.store.rights.known.update(FEATURES)
    try:
        act(stage)
    except Exception as error:
        if not is_refused(error):
            raise
        return True
    return False


def test_privileges_are_checked_again_after_the_tables_are_created(cluster, role):
    """Missing tables are found without an error of the database, which would abort the caller's transaction."""
    url = cluster.create_database()
    engine = create_engine(make_url(url).set(username=role))
    task, store = NewTask(id=uuid7(), task_name="work", args="{}"), Store(engine)
    try:
        with engine.connect() as connection, connection.begin(), pytest.raises(SchemaOutOfDate):
            store.enqueue(task, using=connection)
        migrations.upgrade(url)
        with engine.connect() as connection, connection.begin():
            with pytest.raises(NotPermitted):
                store.enqueue(task, using=connection)
            assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    finally:
        engine.dispose()
        cluster.drop_database(url)


@pytest.mark.parametrize("timeout", [0, 60])
def test_the_error_for_an_unreadable_result_names_the_command_that_grants_it(stage, role, timeout):
    Store(stage.owner.bound_engine).rights.grant(Role.PRODUCER, role)
    done = stage.claimed()
    stage.owner.complete(done, "1")
    with pytest.raises(
        NotPermitted, match=f"lacks SELECT on .*: outboxq grants --role producer --with results {role} --apply"
    ):
        Outbox(stage.engine).result(done.id, timeout=timeout)


def test_a_role_without_the_batches_feature_can_wait_only_for_tasks(stage, role):
    """A wait for a later link names the command that grants the privilege. The wait for the first task continues."""
    Store(stage.owner.bound_engine).rights.grant(Role.PRODUCER, role, {Feature.RESULTS})
    outbox, owner = Outbox(stage.engine), Outbox(stage.owner.bound_engine)

    @owner.task(name="tests.work")
    def work() -> int: ...

    chain = owner.chain(work.call(), work.call()).using(owner).enqueue()
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(outbox.result, chain.task_ids[0], 60)
        for timeout in (0, 60):
            with pytest.raises(NotPermitted, match=f"task_batches.* --with batches --with results {role} --apply"):
                outbox.result(chain.task_ids[1], timeout)
        for value in ("1", "2"):
            [claim] = stage.owner.claim_ready_task(1, worker_id=uuid4())
            stage.owner.complete(claim, value)
        assert waited.result(60) == 1
    assert outbox.result(chain.task_ids[1], timeout=60) == 2


@pytest.mark.parametrize("kind", [Role.VIEWER, Role.WORKER, Role.OPERATOR])
def test_roles_that_read_tasks_may_wait_for_results(stage, role, kind):
    Store(stage.owner.bound_engine).rights.grant(kind, role)
    waits_for_results(stage)
    owner = Outbox(stage.owner.bound_engine)

    @owner.task(name="tests.work")
    def work() -> int: ...

    handle = owner.chain(work.call(), work.call()).using(owner).enqueue()
    with pytest.raises(TimeoutError, match=r"\(tests.work\), which is Ready"):
        Outbox(stage.engine).result(handle.task_ids[-1], timeout=0)


def test_an_unrelated_permission_error_is_not_its_own_cause(url, owner):
    engine = make_engine(url)
    owner.execute(
        "CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not you' USING ERRCODE = '42501'; END $$"
    )
    owner.execute("CREATE TRIGGER forbid BEFORE INSERT ON task_executions FOR EACH ROW EXECUTE FUNCTION forbid()")
    try:
        with pytest.raises(DBAPIError, match="not you") as raised:
            Store(engine).enqueue(NewTask(id=uuid7(), task_name="work", args="{}"))
        assert raised.value.__cause__ is not raised.value
    finally:
        engine.dispose()
        owner.execute("DROP FUNCTION forbid CASCADE")


# A table's privileges are granted after it was partitioned as before, and only a producer's are on single columns.
@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ("granted", Role.PRODUCER),
        ("granted", Role.WORKER),
        ("granted", Role.OPERATOR),
        ("partitioned", Role.PRODUCER),
        pytest.param("partitioned", Role.WORKER, marks=pytest.mark.full),
        pytest.param("partitioned", Role.OPERATOR, marks=pytest.mark.full),
    ],
    ids=name_of,
)
def test_each_role_can_do_its_work_on_a_partitioned_history(cluster, migrated_postgresql, kind, first):
    """A producer has privileges on single columns of the tables that are replaced."""
    name, url = f"outboxq_{uuid4().hex[:12]}", cluster.create_database(template=migrated_postgresql)
    features = frozenset(Feature) if kind is Role.PRODUCER else frozenset()
    with psycopg.connect(plain(url), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        engine = make_engine(url)
        stage = Stage(Store(engine), make_url(url).set(username=name).render_as_string(hide_password=False))
        try:
            if first == "partitioned":
                migrations.partition(url)
            stage.owner.rights.grant(kind, name, features)
            if first == "granted":
                migrations.partition(url)
            for act in acts(kind, features):
                with case(act.__name__):
                    act(stage)
                stage.clear()
        finally:
            stage.close()
            engine.dispose()
            connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")
    cluster.drop_database(url)
