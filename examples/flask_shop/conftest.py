"""Each test has an application of its own, on a new SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from models import db
from shop import create_app, create_tables


class Customer(FlaskClient):
    """From outside: as in production, each request has an application context, and with it a session, of its own.

    Flask would have it use the one that the test has pushed.
    """

    def open(self, *args: Any, **kwargs: Any) -> Any:
        return Context().run(super().open, *args, **kwargs)


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> Iterator[Flask]:
    app = create_app(f"sqlite:///{tmp_path}/shop.db")
    app.test_client_class = Customer
    with app.app_context():
        create_tables()
        yield app
        db.session.remove()
        db.engine.dispose()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()
