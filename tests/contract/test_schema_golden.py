"""The schema equals a stored description, with every supported release of SQLAlchemy and Alembic.

To store a new description::

    OUTBOXQ_WRITE_GOLDEN=1 python -m pytest -n 0 tests/contract/test_schema_golden.py

and review `git diff tests/golden/schema`.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from sqlalchemy import text

from outboxq.database.revisions import fingerprint
from outboxq.database.tables import metadata
from outboxq.database.typed_table import storage_of

GOLDEN = Path(__file__).parents[1] / "golden" / "schema"

OF_SQLITE = "SELECT type, name, coalesce(sql, '') FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name"

OF_POSTGRESQL = """
    SELECT 'table', oid::regclass::text, coalesce(array_to_string(reloptions, ', '), '') FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
  UNION ALL
    SELECT 'column', attrelid::regclass || ' ' || to_char(attnum, 'FM00') || ' ' || attname, concat_ws(' ',
        format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'NOT NULL' END, nullif(attidentity, ''), pg_get_expr(adbin, adrelid))
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0
  UNION ALL
    SELECT 'constraint', concat_ws(' ', nullif(conrelid, 0)::regclass::text, nullif(contypid, 0)::regtype::text, conname),
        pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
  UNION ALL
    SELECT 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid)
    FROM pg_index JOIN pg_class ON oid = indrelid WHERE relnamespace = 'public'::regnamespace
  UNION ALL
    SELECT 'sequence', seqrelid::regclass::text, concat_ws(' ', seqtypid::regtype, seqstart, seqincrement, seqmax, seqmin, seqcache)
    FROM pg_sequence JOIN pg_class ON oid = seqrelid WHERE relnamespace = 'public'::regnamespace
  UNION ALL
    SELECT 'trigger', tgname, pg_get_triggerdef(pg_trigger.oid)
    FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = 'public'::regnamespace
  UNION ALL
    SELECT 'function', oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
  UNION ALL
    SELECT 'domain', oid::regtype::text, format_type(typbasetype, typtypmod) FROM pg_type
    WHERE typnamespace = 'public'::regnamespace AND typtype = 'd'
"""


def described(database):
    """One line per object. A function is described by a digest of its body, which has its own history."""
    lines = []
    with database.engine.connect() as connection:
        for kind, name, definition in connection.execute(
            text(OF_SQLITE if database.name == "sqlite" else OF_POSTGRESQL)
        ):
            words = " ".join(definition.split()).replace(fingerprint(), "FINGERPRINT")
            if kind == "function":
                words = sha256(words.encode()).hexdigest()
            lines.append(f"{kind} {name}: {words}".rstrip(": "))
    return sorted(lines)


def test_the_schema_equals_the_reviewed_description(database):
    file, lines = GOLDEN / f"{database.name}.txt", described(database)
    if os.environ.get("OUTBOXQ_WRITE_GOLDEN"):
        file.write_text("\n".join(lines) + "\n")
    assert lines == file.read_text().splitlines()


def test_migrated_tables_have_the_declared_storage_options(postgresql):
    """Partitions are created with the declared storage."""
    for table in sorted(metadata.tables):
        (found,) = postgresql.rows(f"SELECT reloptions FROM pg_class WHERE oid = '{table}'::regclass")
        declared = [f"{name}={value}" for name, value in storage_of(metadata.tables[table]).items()]
        assert (found[0] or []) == declared, table
