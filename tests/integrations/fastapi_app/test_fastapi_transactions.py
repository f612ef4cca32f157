"""FastAPI with sync endpoints: a task is committed with the request's rows, before the client receives the response."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy import ForeignKey, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outboxq import Outbox


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[int] = mapped_column(ForeignKey("customers.id", deferrable=True, initially="DEFERRED"))


class Customer(Base):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(database):
    engine = database.host_engine()
    if database.name == "sqlite":
        event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON"))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Customer(id=1))
    yield engine
    Base.metadata.drop_all(engine)


@pytest.fixture
def outbox(engine):
    return Outbox(engine)


@pytest.fixture
def receipt(outbox):
    @outbox.task(name="shop.receipt")
    def receipt(order: int) -> None: ...

    return receipt


@pytest.fixture
def post(engine, receipt):
    """Post to an application that has an endpoint for each scope of the dependency."""

    def get_session():
        with Session(engine) as session, session.begin():
            yield session

    app = FastAPI()
    before_the_response, after_it = Depends(get_session, scope="function"), Depends(get_session)

    def place(session: Session, customer: int, refused: bool) -> dict[str, int]:
        order = Order(customer=customer)
        session.add(order)
        session.flush()
        receipt.using(session).enqueue(order.id)
        if refused:
            raise HTTPException(409)
        return {"id": order.id}

    @app.post("/orders")
    def order(customer: int, refused: bool = False, session: Session = before_the_response) -> dict[str, int]:
        return place(session, customer, refused)

    @app.post("/trap")
    def trap(customer: int, refused: bool = False, session: Session = after_it) -> dict[str, int]:
        return place(session, customer, refused)

    def post(path: str, **parameters) -> int:
        """Return the status that the client receives."""

        async def send() -> int:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return (await client.post(path, params=parameters)).status_code

        return asyncio.run(send())

    return post


def orders(database):
    return database.rows("SELECT count(*) FROM orders")[0][0]


@pytest.mark.parametrize("path", ["/orders", "/trap"])
def test_a_task_is_committed_or_rolled_back_together_with_rows_of_the_request(path, post, database):
    assert post(path, customer=1) == 200
    assert (orders(database), *database.counts()) == (1, 1, 1, 1)
    assert post(path, customer=1, refused=True) == 409
    assert (orders(database), *database.counts()) == (1, 1, 1, 1)


def test_a_failed_commit_is_reported_to_the_client(post, database):
    assert post("/orders", customer=2) == 500
    assert (orders(database), *database.counts()) == (0, 0, 0, 0)


def test_with_the_default_scope_a_failed_commit_is_reported_as_success(post, database):
    """FastAPI's behavior, of which docs/fastapi.md warns. If this test fails, the warning is outdated."""
    assert post("/trap", customer=2) == 200
    assert (orders(database), *database.counts()) == (0, 0, 0, 0)


@pytest.mark.parametrize(("refused", "is_committed", "number"), [(False, False, 1), (False, True, 0), (True, False, 0)])
def test_a_task_that_a_request_loses_is_named_in_a_warning(engine, receipt, caplog, refused, is_committed, number):
    """There is no warning if the request commits later or ends with an exception."""

    def get_session():
        with Session(engine) as session:
            yield session

    app, of_the_request = FastAPI(), Depends(get_session)

    @app.post("/orders")
    def order(session: Session = of_the_request) -> dict[str, str]:
        session.commit()
        handle = receipt.using(session).enqueue(1)
        if refused:
            raise HTTPException(409)
        if is_committed:
            session.commit()
        return {"task": str(handle.id)}

    async def send() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            return (await client.post("/orders")).status_code

    assert asyncio.run(send()) == (409 if refused else 200)
    lost = [one.getMessage() for one in caplog.records if one.name == "outboxq.store"]
    assert [("is lost" in one, "shop.receipt" in one) for one in lost] == [(True, True)] * number
