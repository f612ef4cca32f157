"""The shop: an order and its event are committed together."""

import os

from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from outboxq.brokers import RabbitMQ
from outboxq.contrib.flask import Outboxq
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)
outbox = Outboxq(source="shop")
rabbitmq = RabbitMQ(url=os.environ.get("RABBITMQ_URL", "amqp://localhost/"), exchange="shop")
outbox.relay("order.*", to=rabbitmq, name="orders")


class Order(db.Model):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///shop.db"
    db.init_app(app)
    outbox.init_app(app)
    with app.app_context():
        db.create_all()

    @app.post("/orders")
    def place_order():
        order = Order(cents=int(request.form["cents"]))
        db.session.add(order)
        db.session.flush()  # now it has an id
        placed = {"order": order.id, "cents": order.cents}
        outbox.emit("order.placed", placed)  # in the transaction of db.session
        if order.cents > 10_000:
            return "too much", 409  # neither the order nor the event is committed
        db.session.commit()
        return placed, 201

    return app
