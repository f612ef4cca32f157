"""Each test has its own application, on a new SQLite file.

No application context remains pushed during a test: requests from the test client would use its session, and leave the
transaction open. A test pushes a context only where it reads the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from models import db
from shop import create_app, create_tables


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> Iterator[Flask]:
    app = create_app(f"sqlite:///{tmp_path}/shop.db")
    with app.app_context():
        create_tables()
    yield app
    with app.app_context():
        db.engine.dispose()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()
