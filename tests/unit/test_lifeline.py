"""Both ends of a lifeline: orders are carried out as soon as a worker is attached, and the end of the lifeline is also an order."""

from __future__ import annotations

import os
import threading

import pytest

from outboxq.cli.serving.stop_requests import Lifeline, Order, Orders
from tests.waiting import until


class Worker:
    has_stopped = False

    def __init__(self, did):
        self.request_stop = lambda: did.append("stop")
        self.stop_at_once = lambda: did.append("at once")


@pytest.fixture
def did():
    """The actions so far, in order."""
    return []


@pytest.fixture
def worker(did):
    return Worker(did)


@pytest.fixture
def lifeline():
    one = Lifeline()
    yield one
    one.close()
    until(lambda: not listening())  # a thread may still be reading from the other end


@pytest.fixture
def orders(lifeline, did):
    """The orders of a process that has inherited its end of the lifeline. Here, this is the test's own process."""
    own = os.dup(lifeline.descriptor)
    lifeline.close_worker_end()
    yield Orders(own, interrupt=lambda: did.append("interrupt"))
    lifeline.close()
    until(lambda: not listening())
    os.close(own)


def listening() -> bool:
    return any(thread.name == "outboxq-lifeline" for thread in threading.enumerate())


def test_an_order_cannot_be_sent_before_the_process_listens(lifeline, orders):
    assert not lifeline.send(Order.STOP)
    with orders:
        until(lambda: lifeline.send(Order.STOP))
        assert lifeline.send(Order.STOP)


def test_an_order_cannot_be_sent_to_an_ended_process(lifeline):
    lifeline.close_worker_end()
    assert not lifeline.send(Order.STOP)


def test_each_order_reaches_the_worker(lifeline, orders, worker, did):
    orders.attach(worker)
    with orders:
        lifeline.send(Order.STOP)
        lifeline.send(Order.STOP)
        lifeline.send(Order.AT_ONCE)
        until(lambda: did == ["stop", "stop", "at once"])


def test_an_order_before_the_worker_is_attached_interrupts_the_main_thread_and_is_kept(lifeline, orders, worker, did):
    with orders:
        lifeline.send(Order.STOP)
        until(lambda: did == ["interrupt"])
        orders.attach(worker)
        assert did == ["interrupt", "stop"]


@pytest.mark.parametrize("heard", [False, True], ids=["at once", "after it was heard"])
def test_the_end_of_the_lifeline_stops_the_worker(lifeline, orders, worker, did, caplog, heard):
    """If a written order was not read, the system reports an error at the end of the lifeline."""
    orders.attach(worker)
    with orders:
        until(listening)
        if heard:
            until(lambda: lifeline.send(Order.STOP))
            until(lambda: did)
            lifeline.close()
            until(lambda: not listening())
        else:
            lifeline.close()
            until(lambda: did == ["stop"])
            until(lambda: not listening())
    assert set(did) == {"stop"}
    assert caplog.messages.count("the process that started this one has exited; stopping") == (not heard)


@pytest.mark.parametrize("order", Order)
def test_an_order_after_the_worker_has_stopped_is_ignored(lifeline, orders, worker, did, order):
    orders.attach(worker)
    with orders:
        worker.has_stopped = True
        lifeline.send(order)
        lifeline.close()
        until(lambda: not listening())
    assert did == []


def test_an_order_after_the_command_has_failed_is_ignored(lifeline, orders, did):
    with orders:
        until(listening)
    lifeline.send(Order.AT_ONCE)
    lifeline.close()
    until(lambda: not listening())
    assert did == []


def test_without_a_lifeline_there_is_no_listening_thread():
    with Orders(None, interrupt=lambda: None):
        assert not listening()
