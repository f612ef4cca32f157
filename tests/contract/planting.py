"""Write rows that the CHECK constraints would refuse."""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError

from outboxq.database.bounds import of
from outboxq.database.tables import metadata

DOMAINS = {
    "outboxq_instant": "from_1970_to_9000",
    "outboxq_seconds": "from_0_to_a_hundred_years",
    "outboxq_attempts": "from_1_to_2147483646",
    "outboxq_recoveries": "from_0_to_2147483646",
    "outboxq_number": "from_0_to_10_to_the_18",
}


def plant(database, *statements):
    """Run these statements without the CHECK constraints."""
    if database.name == "sqlite":
        with database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            for statement in statements:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = OFF")
        return
    for domain, constraint in DOMAINS.items():
        database.run(f"ALTER DOMAIN {domain} DROP CONSTRAINT IF EXISTS {constraint}")
    for name, table in metadata.tables.items():
        if dropped := ", ".join(f"DROP CONSTRAINT IF EXISTS ck_{name}_{one.name}" for one in of(name, table.columns)):
            database.run(f"ALTER TABLE {name} {dropped}")
    for statement in statements:
        database.run(statement)


def run_or_plant(database, statement):
    """Run a statement. If a CHECK constraint refuses it, run it without the constraints."""
    try:
        database.run(statement)
    except IntegrityError:
        plant(database, statement)
