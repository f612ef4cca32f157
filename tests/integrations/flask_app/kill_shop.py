"""The application of test_flask_kills.py.

Its workers run `flask --app tests.integrations.flask_app.kill_shop outboxq worker`.
"""

from __future__ import annotations

import os
import signal
import time

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import Mapped, mapped_column

from outboxq import TaskContext
from outboxq.contrib.flask import Outboxq

db = SQLAlchemy()
outbox = Outboxq()


class Ledger(db.Model):
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
    step: Mapped[str]


@outbox.task(name="kills.book", lease=1, transactional=True)
def book(ctx: TaskContext, number: int, die: str = "") -> None:
    """Write two effects through the application's session. The first attempt may die after either of them."""
    db.session.add(Ledger(number=number, step="committed"))
    db.session.commit()
    _die(ctx, die == "after the first")
    time.sleep(number % 7 * 0.003)  # gives the test time to kill the worker at any moment
    followed.enqueue(number)
    db.session.add(Ledger(number=number, step="flushed"))
    db.session.flush()
    _die(ctx, die == "after the second")


@outbox.task(name="kills.followed", queue="never worked on")
def followed(number: int) -> None: ...


def _die(ctx: TaskContext, now: bool) -> None:
    if now and ctx.recovery_attempts == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def create_app(url: str | None = None) -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = url or os.environ["KILLS_URL"]
    db.init_app(app)
    outbox.init_app(app)
    return app
