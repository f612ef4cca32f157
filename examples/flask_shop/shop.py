"""The shop's application and its endpoints."""

from __future__ import annotations

import os
from typing import Any
from uuid import UUID, uuid4

from flask import Blueprint, Flask, abort, request
from sqlalchemy import exists, select, update
from werkzeug.exceptions import HTTPException

from models import LedgerEntry, Order, Stock, db
from tasks import book, outbox

orders = Blueprint("orders", __name__)

STOCK = {"tea": (995, 1_000_000), "biscuits": (250, 40), "clotted cream": (400, 0)}


def create_app(database_url: str | None = None) -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = database_url or os.environ.get("SHOP_DATABASE_URL", "sqlite:///shop.db")
    db.init_app(app)
    outbox.init_app(app)
    app.register_blueprint(orders)
    app.cli.command("create-tables")(create_tables)
    return app


def create_tables() -> None:
    """Create the shop's tables, outboxq's tables, and some stock to sell. Run it once, and again after an upgrade."""
    db.create_all()
    outbox.upgrade()
    for item, (cents, left) in STOCK.items():
        if db.session.get(Stock, item) is None:
            db.session.add(Stock(item=item, cents=cents, left=left))
    db.session.commit()


@orders.post("/orders")
def place_order() -> tuple[dict[str, Any], int]:
    wanted = parsed(request.get_json(silent=True))
    order_id = uuid4()
    task = book.using(idempotency_key=request.headers.get("Idempotency-Key")).enqueue(order_id)
    if not task.created:  # the request was repeated
        return described(db.session.scalars(select(Order).where(Order.task_id == task.id)).one()), 200

    stock = update(Stock).where(Stock.item == wanted["item"], Stock.left >= wanted["quantity"])
    price = db.session.scalar(stock.values(left=Stock.left - wanted["quantity"]).returning(Stock.cents))
    if price is None:
        abort(409, f"there is not enough {wanted['item']}")  # nothing is committed, not even the task
    order = Order(id=order_id, task_id=task.id, cents=price * wanted["quantity"], **wanted)
    db.session.add(order)
    answer = described(order)
    db.session.commit()
    return answer, 201


@orders.app_errorhandler(HTTPException)
def refused(error: HTTPException) -> tuple[dict[str, Any], int | None]:
    return {"error": error.description}, error.code


@orders.get("/orders/<uuid:order_id>")
def show_order(order_id: UUID) -> dict[str, Any]:
    db.session.connection(
        execution_options={"sqlite_begin": "DEFERRED"}
    )  # it only reads, so on SQLite it need not wait for writers
    return described(db.get_or_404(Order, order_id))


def parsed(given: Any) -> dict[str, Any]:
    match given:
        case {"reference": str(reference), "item": str(item), "quantity": int(quantity)} if quantity >= 1:
            return {"reference": reference, "item": item, "quantity": quantity}
    return abort(422, "an order has a reference, an item, and a quantity of 1 or more")


def described(order: Order) -> dict[str, Any]:
    booked = db.session.scalar(select(exists().where(LedgerEntry.order_id == order.id)))
    return {
        "id": str(order.id),
        "item": order.item,
        "quantity": order.quantity,
        "cents": order.cents,
        "booked": bool(booked),
    }
