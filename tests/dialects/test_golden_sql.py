"""Each statement's SQL text, compared with the reviewed text.

Any change of SQL appears as a diff of tests/golden/<database>/<module>.<builder>.sql. A query that several statements contain, or that one
statement contains several times, has its own file in the folder `shared`. To accept the new texts::

    OUTBOXQ_WRITE_GOLDEN=1 python -m pytest -n 0 tests/dialects/test_golden_sql.py

and read `git diff tests/golden`.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy

from outboxq.database.dialects import dialect_for
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from outboxq.store.claims import claim_sql, ends
from outboxq.store.claims.ends import CONSTANT_COLUMNS as END_CONSTANTS
from outboxq.store.claims.ends import END
from outboxq.store.producing import enqueue
from outboxq.store.task_rows import CONSTANT_COLUMNS, NEW_TASK, alike_rows
from outboxq.store.tasks import idempotency
from outboxq.store.tasks.idempotency import KEYED
from tests.builders import BUILDERS, of_database
from tests.sql_layout import composed, expanded, layout, references

GOLDEN = Path(__file__).parents[1] / "golden"
WRITE = bool(os.environ.get("OUTBOXQ_WRITE_GOLDEN"))
DATABASES = ["sqlite", "postgresql"]


def as_compared(text: str) -> str:
    """Return the text without white space. SQLAlchemy 2.0 writes other parentheses and superfluous casts, so these are removed too."""
    if sqlalchemy.__version__ < "2.1":
        text = re.sub(r"(?<=\)s)::[A-Z]+|[()]", " ", text)
    return "".join(text.split())


@cache
def compiled(database):
    """Return the statements by name, each compiled once.

    They are compiled from first to last to write the files, and from last to first to compare. So a text that depends on what was compiled
    before it differs.
    """
    builders = of_database(database).items()
    return {
        name: dialect_for(database).compiled[builder] for name, builder in (builders if WRITE else reversed(builders))
    }


@cache
def shared(database):
    return {file.stem: file.read_text() for file in (GOLDEN / database / "shared").glob("*.sql")}


def write(database):
    shutil.rmtree(GOLDEN / database, ignore_errors=True)
    statements, queries = composed({name: plan.sql for name, plan in compiled(database).items()})
    for folder, texts in ((GOLDEN / database, statements), (GOLDEN / database / "shared", queries)):
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.sql").write_text(text)


@pytest.mark.parametrize("database", DATABASES)
def test_the_sql_is_the_reviewed_sql(database):
    if WRITE:
        write(database)
    files = {file.stem: file.read_text() for file in (GOLDEN / database).glob("*.sql")}
    assert files.keys() == compiled(database).keys(), f"see the docstring of {__name__}"
    for name, plan in compiled(database).items():
        reviewed = expanded(files[name], shared(database))
        if as_compared(plan.sql) != as_compared(reviewed):
            assert layout(plan.sql) == layout(reviewed), f"{name}: see the docstring of {__name__}"
            raise AssertionError(name)


@pytest.mark.parametrize("database", DATABASES)
def test_each_shared_query_is_used(database):
    texts = [file.read_text() for file in (GOLDEN / database).rglob("*.sql")]
    assert set().union(*map(references, texts)) == shared(database).keys()


def batched(database):
    """Return the statements that take a batch, with their names."""
    names = [name for name, plan in compiled("postgresql").items() if getattr(plan, "sql_of_one", None) is not None]
    return [(name, compiled(database)[name]) for name in names if name in of_database(database)]


def test_sql_for_a_batch_of_one_differs_only_in_the_batch():
    """So one golden file covers both texts."""
    assert batched("postgresql")
    for name, plan in batched("postgresql"):
        texts = (without_given(sql) for sql in (plan.sql, plan.sql_of_one))
        [batch, one], [rest, rest_of_one] = zip(*texts, strict=True)
        assert rest_of_one == rest, name
        assert "unnest(" in batch, name
        assert "unnest(" not in one, name


def test_on_sqlite_a_single_row_is_sent_as_separate_parameters():
    assert batched("sqlite")
    for name, plan in batched("sqlite"):
        batch, one = plan.sql, plan.sql_of_one
        assert "json_each(:given)" in batch, name
        assert "json_each(:given)" not in one, name
        assert ":given_" in one, name


@pytest.mark.parametrize(("builder", "columns"), [(enqueue.insert_tasks, NEW_TASK), (idempotency.insert_keyed, KEYED)])
def test_values_common_to_a_batch_are_sent_once_and_no_other_text_differs(builder, columns):
    plan = dialect_for("postgresql").compiled[builder]
    differing = set(columns) - CONSTANT_COLUMNS

    def row(number: int, **values: object) -> tuple[object, ...]:
        return tuple({**dict.fromkeys(columns), **dict.fromkeys(differing, number), **values}[key] for key in columns)

    little = plan.sql_for([row(1), row(2)])
    batch, rest = without_given(little)
    assert batch.count("[]") == len(differing)
    assert rest == without_given(plan.sql)[1]
    assert plan.sql_for([row(1), row(2, queue="other")]) == plan.sql
    assert plan.sql_for([row(1)]) == plan.sql_of_one


@pytest.mark.parametrize(
    ("builder", "columns", "alike"),
    [
        (enqueue.insert_tasks, NEW_TASK, CONSTANT_COLUMNS),
        (idempotency.insert_keyed, KEYED, CONSTANT_COLUMNS),
        (ends.end, END, END_CONSTANTS),
    ],
)
def test_on_sqlite_values_common_to_a_batch_are_separate_parameters(builder, columns, alike):
    plan = dialect_for("sqlite").compiled[builder]
    whole, little = plan.sql, plan.sql_of_constants
    assert "json_each(:given)" in little
    assert not re.search(r":given_\w", whole)
    assert set(re.findall(r":given_(\w+)", little)) <= alike
    for text, among in ((whole, set(columns)), (little, set(columns) - alike)):
        assert max(map(int, re.findall(r"json_extract\(given_rows.value, '\$\[(\d+)\]'", text))) < len(among)
    assert [without_given(part)[1] for part in little.split(";\n\n") if "given AS" in part] == [
        without_given(part)[1] for part in whole.split(";\n\n") if "given AS" in part
    ]


def test_only_the_ids_and_arguments_of_similar_tasks_are_sent_for_each():
    plan, new = dialect_for("postgresql").compiled[enqueue.insert_tasks], NewTask(id=uuid7(), task_name="t", args="{}")
    for family, several in ((None, 3), (uuid7(), 2)):
        sql = plan.sql_for(alike_rows([replace(new, id=uuid7(), pipeline_execution_id=family) for _ in range(2)]))
        assert sql.count("[]") == several
        assert without_given(sql)[1] == without_given(plan.sql)[1]


def test_values_common_to_all_ends_are_sent_once():
    plan = dialect_for("postgresql").compiled[ends.end]

    def row(number: int, **values: object) -> tuple[object, ...]:
        own = dict.fromkeys(set(END) - END_CONSTANTS, number)
        return tuple({**dict.fromkeys(END), "status": "Completed", **own, **values}[key] for key in END)

    assert plan.sql_for([row(1), row(2)]).count("[]") == len(END) - len(END_CONSTANTS)
    assert plan.sql_for([row(1), row(2, error="other")]).count("[]") == len(END)


@pytest.mark.parametrize("size", [1, 2])
def test_a_batch_omits_the_statements_that_would_affect_no_row(size):
    plan = dialect_for("postgresql").compiled[ends.end]

    def row(status: str, key: str | None = None) -> tuple[object, ...]:
        return tuple({"status": status, "partition_key": key}.get(name) for name in END)

    steps = {
        "entry": "INSERT INTO task_outbox",
        "letter": "INSERT INTO dead_letters",
        "key_held": "UPDATE partition_claims",
        "key_freed": "DELETE FROM partition_claims",
    }
    for rows, expected in (
        ([row("Completed")], set()),
        ([row("Ready")], {"entry"}),
        ([row("Failed")], {"letter"}),
        ([row("Completed", "key")], {"key_held", "key_freed"}),
    ):
        sql = plan.sql_for(rows * size)
        assert {step for step, text in steps.items() if text in sql} == expected
        assert sql.count("INSERT INTO execution_events") == 1
    assert plan.sql_for([row("Ready", "key"), row("Failed")]) == plan.sql


def without_given(sql: str) -> tuple[str, str]:
    """Return the relation `given`, and the statement around it."""
    begin = sql.index("(", sql.index("given AS"))
    depth, end = 0, begin
    while depth or end == begin:
        depth += {"(": 1, ")": -1}.get(sql[end], 0)
        end += 1
    return sql[begin:end], sql[: sql.index("given AS")] + sql[end:]


def test_each_database_has_a_separate_claim_statement():
    """PostgreSQL's claim has row locks. SQLite has none, because there is only one writer at a time, and has neither ctid nor LATERAL."""
    for builder in (claim_sql.from_one, claim_sql.from_given, claim_sql.from_all):
        postgresql, sqlite = (dialect_for(database).compiled[builder].sql for database in ("postgresql", "sqlite"))
        assert "FOR UPDATE SKIP LOCKED" in postgresql
        assert "clock_timestamp()" in postgresql
        assert "MATERIALIZED" in postgresql
        assert not any(word in sqlite for word in ("FOR UPDATE", "ctid", "LATERAL", "clock_timestamp"))
        assert ":limit" in sqlite


def test_a_schema_is_added_to_every_table():
    compiled = dialect_for("postgresql", schema="tasks").compiled
    tables = "task_executions|task_outbox|task_leases|execution_events|idempotency_keys"
    without = re.compile(rf"(FROM|JOIN|INTO|UPDATE) ({tables}) |__\[SCHEMA")
    assert [name for name, builder in BUILDERS.items() if without.search(compiled[builder].sql)] == []
