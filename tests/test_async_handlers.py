"""Awaitable delivery handlers run as in tasks of their own, although most of them never wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import mqcore
from awaited import LIMIT
from mqcore import Decision, DeliveryHandler, QueueOptions, SendAck, errors
from mqcore._handler_loop import HandlerLoop
from mqcore.client import Client

ACCEPT = Decision(acknowledge=SendAck.ALWAYS)
REFUSE = Decision(allow=False, acknowledge=SendAck.NEGATIVE)
COUNT = 60


class Deciding(DeliveryHandler):
    """Decides about messages with a function that returns an awaitable."""

    def __init__(self, decide: Callable[[int], Any]) -> None:
        self._decide = decide

    def received_from_producer(self, queue: Any, message: Any, producer: Any) -> Any:
        return self._decide(int(message.body))


async def outcomes(decide: Callable[[int], Any], *, timeout: float = 5.0, count: int = COUNT) -> list[bool]:
    """Publish numbers at once, and return which of them were accepted."""
    handler = Deciding(decide)
    handler.timeout = timeout
    broker = mqcore.Broker()
    broker.delivery_handlers["decides"] = handler

    async def publish(client: Client, number: int) -> bool:
        try:
            await client.publish("work/1", str(number).encode())
        except errors.MqcoreError:
            return False
        return True

    async with broker, mqcore.connect(broker) as mq, asyncio.timeout(LIMIT):
        await mq.declare("work", 1, QueueOptions(delivery_handler="decides"))
        return list(await asyncio.gather(*(publish(mq, number) for number in range(count))))


async def test_handlers_that_wait_do_not_delay_those_that_do_not() -> None:
    decided: list[int] = []
    others = asyncio.Event()

    async def decide(number: int) -> Decision:
        if number % 3 == 0:
            await others.wait()
        decided.append(number)
        if len(decided) == COUNT - COUNT // 3:
            others.set()
        return ACCEPT

    assert await outcomes(decide) == [True] * COUNT
    assert all(number % 3 for number in decided[: COUNT - COUNT // 3])


async def test_a_timeout_in_a_handler_ends_only_that_call() -> None:
    async def decide(number: int) -> Decision:
        try:
            async with asyncio.timeout(0.02 if number % 2 else 1.0):
                await asyncio.sleep(0.1)
        except TimeoutError:
            return REFUSE
        return ACCEPT

    assert await outcomes(decide) == [number % 2 == 0 for number in range(COUNT)]


async def test_calls_that_wait_have_tasks_of_their_own() -> None:
    tasks: set[asyncio.Task[Any] | None] = set()
    ready = asyncio.Event()

    async def decide(number: int) -> Decision:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            tasks.add(asyncio.current_task())
            if len(tasks) == COUNT:
                ready.set()
            await ready.wait()
        return ACCEPT

    assert await outcomes(decide) == [True] * COUNT
    assert len(tasks) == COUNT


async def test_context_variables_of_a_call_are_its_own() -> None:
    current: ContextVar[int | None] = ContextVar("current", default=None)

    async def decide(number: int) -> Decision:
        found = current.get()
        current.set(number)
        if number % 2:
            await asyncio.sleep(0.001)
        return ACCEPT if found is None and current.get() == number else REFUSE

    assert await outcomes(decide) == [True] * COUNT


async def test_futures_and_other_awaitables_are_awaited() -> None:
    loop = asyncio.get_running_loop()

    class Later:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0.001).__await__()
            return ACCEPT

    def decide(number: int) -> Any:
        if number % 2:
            return Later()
        future: asyncio.Future[Decision] = loop.create_future()
        loop.call_soon_threadsafe(future.set_result, REFUSE if number % 4 else ACCEPT)
        return future

    assert await outcomes(decide) == [bool(number % 2) or number % 4 == 0 for number in range(COUNT)]


async def test_at_the_deadline_only_calls_that_have_not_ended_fail() -> None:
    async def decide(number: int) -> Decision:
        if number % 10 == 0:
            await asyncio.sleep(60)
        return ACCEPT

    assert await outcomes(decide, timeout=0.2) == [number % 10 != 0 for number in range(COUNT)]


async def test_a_call_that_cancels_itself_fails_alone() -> None:
    async def decide(number: int) -> Decision:
        if number == 5:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
        return ACCEPT

    assert await outcomes(decide) == [number != 5 for number in range(COUNT)]


def test_a_stop_before_the_thread_of_handlers_runs_cancels_them() -> None:
    interval = sys.getswitchinterval()
    # The stop then comes at any step of the beginning thread.
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(500):
            handlers = HandlerLoop()
            loop = handlers.get()
            future = asyncio.run_coroutine_threadsafe(asyncio.sleep(60), loop)
            assert handlers.stop(LIMIT)
            assert loop.is_closed()
            assert future.cancelled()
    finally:
        sys.setswitchinterval(interval)
