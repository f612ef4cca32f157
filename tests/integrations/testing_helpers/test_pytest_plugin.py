"""The plugin and its fixtures. (tests/docs/test_testing_page.py runs pytest in a subprocess, on both databases.)"""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

import pytest_outboxq
from outboxq import Outbox
from outboxq.testing import Harness


@pytest.fixture
def outboxq_app(shop):
    return shop.outbox


@pytest.fixture
def outboxq_using(connection):
    return connection


@pytest.mark.parametrize("order_id", [1, 2])
def test_each_test_begins_without_tasks(harness, shop, session, order_id):
    assert isinstance(harness, Harness)
    harness.refute_enqueued()
    shop.receipt.using(session).enqueue(order_id)
    harness.assert_enqueued(shop.receipt, order_id, times=1)
    assert [ran.result for ran in harness.drain()] == [f"receipt {order_id}"]


def test_a_failed_assertion_points_to_the_line_of_the_test(harness, shop):
    with pytest.raises(AssertionError) as raised:
        harness.assert_enqueued(shop.receipt, 2)
    assert [str(entry.path) for entry in raised.traceback.filter(raised)] == [__file__]


class TestAFixtureOfTheSameName:
    @pytest.fixture
    def harness(self):
        return "mine"

    def test_the_fixture_of_the_class_is_used(self, harness):
        assert harness == "mine"


def test_the_plugin_is_active_but_imports_nothing_until_used(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("outboxq")
    script = "import sys, pytest_outboxq; print({'outboxq', 'sqlalchemy'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", script], text=True, cwd=pytestconfig.rootpath) == "set()\n"


def test_an_application_is_named_in_the_configuration(monkeypatch):
    found = Outbox()
    monkeypatch.setattr(sys.modules["outboxq.testing"], "app", found, raising=False)
    assert pytest_outboxq.named("outboxq.testing:app") is found


def test_no_application_is_found_without_outboxq():
    assert pytest_outboxq.of_django() is None
    assert pytest_outboxq.of_flask(None) is None


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("", "set outboxq_app = "),
        ("outboxq.testing:nothing", "outboxq.testing has no Outbox called 'nothing'"),
        ("outboxq.testing", "has no Outbox called 'outbox'"),
    ],
)
def test_an_application_that_is_unnamed_or_missing_is_an_error(said, sentence):
    with pytest.raises(pytest.UsageError, match=sentence):
        pytest_outboxq.named(said)


def test_a_flask_application_is_found_although_only_its_fixture_imports_flask(tmp_path, pytestconfig):
    (tmp_path / "conftest.py").write_text(
        dedent("""
            import pytest

            @pytest.fixture
            def app():
                from flask import Flask
                from outboxq.contrib.flask import Outboxq

                app = Flask("shop")
                app.config["OUTBOXQ_DATABASE_URL"] = "sqlite:///test.db"
                outbox = Outboxq(app)
                with app.app_context():
                    outbox.upgrade()
                return app

            @pytest.fixture
            def client(app):
                return app.test_client()
        """)
    )
    (tmp_path / "test_shop.py").write_text(
        dedent("""
            def test_it_is_found_before_the_client_is_made(harness, client):
                assert harness.app is client.application.extensions["outboxq"]
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:django", "-p", "no:flask", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(pytestconfig.rootpath)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
