"""What follows every test on PostgreSQL notices what `verify` notices."""

from __future__ import annotations


def test_a_corruption_is_noticed_by_the_one_statement_that_asks_all_checks(postgresql, reused_postgresql):
    postgresql.add()
    assert reused_postgresql.is_sound(postgresql.url, postgresql.clock())
    postgresql.run("UPDATE task_executions SET attempt = 7")
    assert not reused_postgresql.is_sound(postgresql.url, postgresql.clock())
    postgresql.run("UPDATE task_executions SET attempt = 1")


def test_another_database_is_left_to_verify(postgresql, reused_postgresql):
    assert not reused_postgresql.is_sound(f"{postgresql.url}_of_another_test", postgresql.clock())
