"""Ask the database about itself: its version, its size, and the snapshot that keeps dead rows from being cleaned up."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select

from ..grammar import Grammar
from ..tables import version_table


def server(g: Grammar) -> Select[Any]:
    """Select the database's name and version, its bytes, the begin of the oldest transaction that has a snapshot, and the revision
    of our schema with the oldest code that it admits.
    """
    found, schema = g.server().subquery("server"), version_table.c
    revision, oldest_code = (select(one).scalar_subquery() for one in (schema.version_num, schema.oldest_code))
    return select(found, revision.label("revision"), oldest_code.label("oldest_code"))
