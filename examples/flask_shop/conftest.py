"""Each test has its own application, on a new SQLite file.

No application context stays pushed while a test runs: a request of its client would use that context's session, and leave its
transaction open. A test pushes one for what it looks at.
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
