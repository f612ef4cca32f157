"""The page about roles: its table of privileges matches the code. To update it: python -m tests.docs.test_roles_page"""

from __future__ import annotations

from pathlib import Path

from outboxq.database.privileges import Feature, Kind, Role, rights

PAGE = Path(__file__).parents[2] / "docs" / "roles.md"
BEGIN, END = "<!-- privileges -->\n", "<!-- /privileges -->"
COLUMNS = {
    "producer": (Role.PRODUCER, set()),
    "… `emit`": (Role.PRODUCER, {Feature.EMIT}),
    "… `idempotency`": (Role.PRODUCER, {Feature.IDEMPOTENCY}),
    "… `replace`": (Role.PRODUCER, {Feature.REPLACE}),
    "… `inbox`": (Role.PRODUCER, {Feature.INBOX}),
    "worker": (Role.WORKER, set()),
    "viewer": (Role.VIEWER, set()),
    "operator": (Role.OPERATOR, set()),
}


def table() -> str:
    lines = ["| role | on | privileges |", "|---|---|---|"]
    plain = set(_cells(Role.PRODUCER, set()).items())
    keyed = set(_cells(Role.PRODUCER, {Feature.IDEMPOTENCY}).items())
    for title, (role, features) in COLUMNS.items():
        cells = _cells(role, features)
        known = plain if features else set()
        known = keyed if Feature.REPLACE in features else known
        lines += [f"| {title} | `{name}` | {words} |" for name, words in cells.items() if (name, words) not in known]
    return "\n".join(lines) + "\n"


def _cells(role: Role, features: set[Feature]) -> dict[str, str]:
    cells: dict[str, list[str]] = {}
    for right in rights(role, features):
        if right.kind is not Kind.SCHEMA:
            columns = f" ({', '.join(right.columns)})" if right.columns else ""
            cells.setdefault(right.name, []).append(f"{right.privilege}{columns}")
    return {name: ", ".join(words) for name, words in cells.items()}


def test_the_page_lists_the_privileges_that_are_granted():
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == table()


def test_no_privilege_of_a_producer_reveals_tasks_of_others():
    closed = {"args", "headers", "result", "last_error"}
    for right in rights(Role.PRODUCER, set(Feature) - {Feature.RESULTS}):
        if right.privilege == "SELECT" and right.name in {"task_executions", "dead_letters"}:
            assert right.columns, "the privilege must be limited to some columns"
            assert not closed & set(right.columns)
            assert "exception" not in right.columns
    added = {
        right.name
        for right in rights(Role.PRODUCER, {Feature.RESULTS})
        if {"result", "last_error"} & set(right.columns)
    }
    assert added == {"task_executions"}, "only a producer that waits for results may read them, and never the arguments"
    assert not {"args", "headers"} & {
        one for right in rights(Role.PRODUCER, set(Feature)) for one in right.columns if right.privilege == "SELECT"
    }


if __name__ == "__main__":
    said = PAGE.read_text()
    PAGE.write_text(said[: said.index(BEGIN) + len(BEGIN)] + table() + said[said.index(END) :])
