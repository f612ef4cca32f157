"""The metadata of all tables: the names of their keys, indexes and checks."""

from __future__ import annotations

from sqlalchemy import MetaData

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

AGGRESSIVE_VACUUM = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_vacuum_cost_delay": 0,
}
"""For small tables whose rows are inserted and deleted all the time: vacuum early, by count and not by share, at full speed."""
