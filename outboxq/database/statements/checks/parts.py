"""Check the database's catalogue: the indexes and the triggers exist, and the counter of positions was not set back.

The two catalogues have nothing in common, so each dialect has its own queries here.
"""

from __future__ import annotations

from collections.abc import Mapping

from .check import Check


def checks() -> Mapping[str, Check]:
    return {
        "positions_set_back": Check(
            meaning="the next positions are below those in use, so new tasks of a key overtake the older ones",
            broken=lambda g: g.set_back(),
        ),
        "part_missing": Check(
            meaning="an index or trigger that `outboxq upgrade` makes is missing, invalid or switched off; make it again "
            "as `outboxq upgrade --sql` prints it",
            broken=lambda g: g.missing_parts(),
        ),
        "function_of_other_schema": Check(
            meaning="a function that `outboxq upgrade` makes names another schema than that of the tables, which was renamed, so ends "
            "of tasks in batches or enqueues in SQL fail; docs/upgrading.md, 'A renamed schema', has the statement that mends it",
            broken=lambda g: g.misplaced_functions(),
        ),
    }
