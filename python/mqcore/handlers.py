"""Deciding about messages in Python: the delivery handler.

Subclass `DeliveryHandler`, override the steps you want to decide, and register an instance under a key::

    broker.delivery_handlers["orders"] = Orders()

Queues whose ``delivery_handler`` option is that key then ask it. Only overridden steps cost a trip into
Python; the others are decided in Rust by the handler's ``policy``.

Each handler object has a thread of its own. Plain methods run there, one after the other, which is cheapest
for short decisions; a plain method that sleeps keeps the queues of this handler waiting, and no others.
Methods that are ``async def`` (or return anything awaitable) run on the event loop that entered the broker,
side by side.

A handler can be late, or raise, but it cannot lose a message: when no answer came within ``timeout``, or a
method raised and `exception_thrown` did not decide, the handler's ``fallback`` holds, which keeps the message
unless you change it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from enum import StrEnum
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from mqcore._core import (
    Acknowledgement,
    ClientView,
    Decision,
    Decisions,
    Delivery,
    Message,
    MessageBatch,
    PendingAnswers,
    QueueView,
    policy_decision,
)
from mqcore._coroutines import rest_of
from mqcore._methods import check_arguments, check_names
from mqcore._raised import ends_task

if TYPE_CHECKING:
    from mqcore.config import Duration

__all__ = ["DeliveryHandler", "PutBack", "SendAck"]

_LOG: Final = logging.getLogger("mqcore.handlers")
_T = TypeVar("_T")
_Answer: TypeAlias = _T | Awaitable[_T]


class PutBack(StrEnum):
    """Whether and where a message returns to its queue."""

    NO = "no"
    """It does not."""
    START = "start"
    """In front: consumed next."""
    END = "end"
    """Behind all others."""


class SendAck(StrEnum):
    """The confirmation that the producer receives right after the step."""

    NONE = "none"
    """Nothing."""
    ALWAYS = "always"
    """A positive acknowledgement."""
    IF_SAVED = "if-saved"
    """A positive acknowledgement if the message is saved by now; else nothing. If ``save`` fails when the message
    arrives, a producer that waits gets error 503."""
    NEGATIVE = "negative"
    """A negative acknowledgement."""


class DeliveryHandler:
    """Decides what happens to messages on their way through a queue.

    Every step may be overridden by a plain or an ``async`` method. The policy named by
    `policy` decides the other steps, and the calls of methods of this class through ``super()``.

    A `Decision` that does not ``allow`` ends the processing of the message at this step: the broker removes the
    message, unless ``put_back`` requeues it. ``save`` calls `save_message`, once for a message. ``acknowledge``
    confirms to the producer right after the step, even if the producer requested no confirmation; a policy confirms
    only on request.

    >>> class OnlyFrance(mqcore.DeliveryHandler):
    ...     def received_from_producer(self, queue, message, producer):
    ...         country = message.headers.get("Country")
    ...         return mqcore.Decision(allow=country == "fr", acknowledge=mqcore.SendAck.ALWAYS)
    >>> broker.delivery_handlers["france"] = OnlyFrance()
    >>> async with mqcore.connect(broker) as client:
    ...     created = await client.declare("france", 1, mqcore.QueueOptions(delivery_handler="france"))
    ...     receipt = await client.publish("france/1", b"1 pear", headers={"Country": "de"})
    >>> broker.stats().queue("france/1").normal
    0
    """

    policy: str = "memory"
    """Decides the steps that are not overridden: ``memory``, ``at-most-once``, ``at-least-once``,
    ``ack-on-save``, ``ack-on-send`` or ``ack-on-consume``."""
    timeout: Duration = 10.0
    """How long an answer may take before `fallback` holds. Awaited methods are cancelled then."""
    fallback: Decision = Decision(put_back=PutBack.END)
    """Holds when an answer is late or failed. The default keeps the message."""

    def received_from_producer(self, queue: QueueView, message: Message, producer: ClientView) -> _Answer[Decision]:
        """Decide about a message that has arrived and is not stored yet. Called once a message."""
        return policy_decision(self.policy, "received_from_producer")

    def received_many(self, queue: QueueView, messages: MessageBatch) -> Decision | Decisions | Sequence[Decision]:
        """Decide about messages that have arrived together, in order. Override it instead of `received_from_producer`.

        It gets 1 to 1,024 messages of one queue, all that have arrived since the last call, and returns one decision
        for all of them, one for each, or `Decisions`. It is a plain method. If it raises, or returns the wrong number
        of decisions, the rules of a failed `received_from_producer` apply to all messages of the call.

        >>> class Small(mqcore.DeliveryHandler):
        ...     def received_many(self, queue, messages):
        ...         choices = (mqcore.Decision(), mqcore.Decision(allow=False, acknowledge=mqcore.SendAck.NEGATIVE))
        ...         return mqcore.Decisions(choices, [size > 1000 for size in messages.sizes])
        >>> broker.delivery_handlers["small"] = Small()
        >>> async with mqcore.connect(broker) as client:
        ...     created = await client.declare("small", 1, mqcore.QueueOptions(delivery_handler="small"))
        ...     await client.publish("small/1", bytes(2000))
        Traceback (most recent call last):
        mqcore.errors.Nacked: ...
        """
        return policy_decision(self.policy, "received_from_producer")

    def begin_send(self, queue: QueueView, message: Message) -> _Answer[Decision]:
        """Decide about a message that is about to be offered to the first consumer."""
        return policy_decision(self.policy, "begin_send")

    def can_consumer_receive(self, queue: QueueView, message: Message, consumer: ClientView) -> _Answer[Decision]:
        """Decide whether this consumer gets the message. Called for each consumer; refusing skips only it."""
        return policy_decision(self.policy, "can_consumer_receive")

    def consumer_received(self, queue: QueueView, delivery: Delivery, consumer: ClientView) -> _Answer[Decision]:
        """Decide after the message was given to a consumer's connection."""
        return policy_decision(self.policy, "consumer_received")

    def consumer_receive_failed(self, queue: QueueView, delivery: Delivery, consumer: ClientView) -> _Answer[Decision]:
        """Decide after it could not be given to a consumer, or the consumer was lost before it settled."""
        return policy_decision(self.policy, "consumer_receive_failed")

    def end_send(self, queue: QueueView, message: Message) -> _Answer[Decision]:
        """Decide after all consumers were tried."""
        return policy_decision(self.policy, "end_send")

    def acknowledge_received(
        self, queue: QueueView, acknowledgement: Acknowledgement, delivery: Delivery | None
    ) -> _Answer[Decision]:
        """Decide after a consumer acknowledged, positively or negatively.

        `delivery` is the acknowledged delivery. The broker ignores acknowledgements of unknown deliveries, so this
        method is not called for them. ``SendAck.ALWAYS`` relays the consumer's acknowledgement to the producer.
        """
        return policy_decision(self.policy, "acknowledge_received", positive=acknowledgement.positive)

    def acknowledge_timed_out(self, queue: QueueView, delivery: Delivery) -> _Answer[Decision]:
        """Decide after a consumer did not acknowledge within the queue's ``acknowledge_timeout``."""
        return policy_decision(self.policy, "acknowledge_timed_out")

    def message_timed_out(self, queue: QueueView, message: Message) -> _Answer[Decision]:
        """Decide about a message that waited longer than the queue's ``message_timeout``."""
        return policy_decision(self.policy, "message_timed_out")

    def message_dequeued(self, queue: QueueView, message: Message) -> _Answer[None]:
        """Take note that a message left its queue for good. The broker does not wait for this call."""

    def exception_thrown(self, queue: QueueView, message: Message | None, exception: Exception) -> _Answer[Decision]:
        """Decide instead of a method that raised `exception`, or returned an invalid value.

        Not called for a `SystemExit`, a `KeyboardInterrupt` or the like: the broker logs it and uses `fallback`. No
        exception of a handler ends the program.
        Not overridden, the exception is logged and `fallback` holds. A message whose `save_message` raised counts as
        not saved, whatever is decided here.
        """
        return self.fallback

    def save_message(self, queue: QueueView, message: Message) -> _Answer[bool]:
        """Save the message and return whether that succeeded. Called once per message, when a decision sets ``save``.

        If this method is not overridden, the broker saves the message in its journal, which needs a data directory.
        Without a data directory the message counts as not saved.
        """
        return False


_ARGUMENTS: Final = {
    "received_from_producer": 3,
    "received_many": 2,
    "begin_send": 2,
    "can_consumer_receive": 3,
    "consumer_received": 3,
    "consumer_receive_failed": 3,
    "end_send": 2,
    "acknowledge_received": 3,
    "acknowledge_timed_out": 2,
    "message_timed_out": 2,
    "message_dequeued": 2,
    "exception_thrown": 3,
    "save_message": 2,
}
"""The steps, with the number of arguments of each."""


def overridden(handler: DeliveryHandler) -> list[tuple[str, Callable[..., object]]]:
    """The steps that `handler` decides itself, each with its bound method.

    Raises `TypeError` for a public method whose name is nearly that of a step, for one that cannot take the arguments
    of its step, and for a `received_many` that is async or beside a `received_from_producer`.
    """
    check_names(type(handler), DeliveryHandler, _ARGUMENTS, "a step of a delivery handler")
    steps = []
    for step, arguments in _ARGUMENTS.items():
        method = getattr(handler, step)
        if getattr(method, "__func__", None) is not getattr(DeliveryHandler, step):
            check_arguments(handler, DeliveryHandler, (step, method), arguments)
            steps.append((step, method))
    _check_many(type(handler).__qualname__, dict(steps))
    return steps


def _check_many(name: str, steps: dict[str, Callable[..., object]]) -> None:
    if "received_many" not in steps:
        return
    if "received_from_producer" in steps:
        raise TypeError(
            f"{name} overrides received_many and received_from_producer, which decide the same step; keep one"
        )
    for step in ("received_many", "exception_thrown"):
        if inspect.iscoroutinefunction(steps.get(step)):
            raise TypeError(
                f"{name}.{step} is async; a handler with received_many decides at once, so use a plain method"
            )


def _report(key: str, method: str, exception: BaseException, count: int) -> None:
    """Log that methods of a handler raised, once for a whole batch. Called from the handler's thread too."""
    times = "" if count == 1 else f" ({count} times in one batch; this is the first)"
    if (name := key.removeprefix("event handler ")) != key:
        _LOG.error("event handler %r raised in %s%s; the broker continues", name, method, times, exc_info=exception)
    elif (name := key.removeprefix("authenticator ")) != key:
        _LOG.error("authenticator %r raised%s; the broker refuses the client", name, times, exc_info=exception)
    else:
        _LOG.error("delivery handler %r raised in %s%s; its fallback decides", key, method, times, exc_info=exception)


def _report_filter(name: str, exception: BaseException, count: int) -> None:
    """Log that a filter of nodes raised, once for a whole batch. Called from the filter's thread."""
    times = "" if count == 1 else f" ({count} times in one batch; this is the first)"
    _LOG.error("node filter %r raised%s; its fallback holds", name, times, exc_info=exception)


class LoopRunner:
    """Brings the awaitables of one handler to an event loop and the answers back."""

    def __init__(self, key: str, timeout: float, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._key = key
        self._timeout = timeout
        self._loop = loop

    def submit(self, pending: PendingAnswers) -> None:
        """Await these answers on the event loop. The thread of the handler calls this."""
        try:
            loop = self._loop()
            loop.call_soon_threadsafe(self._run, loop, pending)
        except RuntimeError as closed:
            pending.abandon()
            _report(self._key, pending.method(0), closed, len(pending))

    def _run(self, loop: asyncio.AbstractEventLoop, pending: PendingAnswers) -> None:
        _AnswerRun(loop, pending, self._key, self._timeout)


class _AnswerRun:
    """Answers awaited on the loop, with one deadline for all, and one flush for those that end together.

    A task runs one coroutine after the other. Only when one waits for something does another task begin with the next
    coroutine, because a task for each costs more than most handlers.
    """

    __slots__ = (
        "_context",
        "_count",
        "_deadline",
        "_failure",
        "_failures",
        "_key",
        "_left",
        "_loop",
        "_next",
        "_pending",
        "_tasks",
        "_timeout",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, pending: PendingAnswers, key: str, timeout: float) -> None:
        self._loop = loop
        self._pending = pending
        self._key = key
        self._timeout = timeout
        self._next = 0
        self._count = self._left = len(pending)
        self._failure: tuple[str, BaseException] | None = None
        self._failures = 0
        # Each coroutine gets a copy, as in a task of its own.
        self._context = copy_context()
        self._deadline = loop.call_later(timeout, self._cancel)
        # Held here because a loop holds its tasks weakly; their frames hold this object.
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin_task()

    def _begin_task(self) -> None:
        """Run the coroutines that no task has begun, if there are any."""
        if self._next < self._count:
            task = self._loop.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        pending, count, base = self._pending, self._count, self._context
        while (index := self._next) < count:
            self._next = index + 1
            work, context = _coroutine_of(pending.awaitable(index)), base.copy()
            rest: Awaitable[object]
            try:
                awaited = context.run(work.send, None)
            except StopIteration as ended:
                try:
                    flush = pending.decide(index, ended.value)
                except Exception as error:
                    rest = _raise(error)
                else:
                    if flush:
                        self._loop.call_soon(self._flush)
                    self._ended(1)
                    continue
            except BaseException as error:
                rest = _raise(error)
            else:
                self._begin_task()
                rest = rest_of(work, context, awaited)
            await self._answer(index, task, rest)
            if task.cancelling():
                # It is not for the next coroutine, and a loop that ends must not wait for that one.
                self._begin_task()
                return

    async def _answer(self, index: int, task: asyncio.Task[None], rest: Awaitable[object]) -> None:
        """Await the rest of a coroutine, and settle with its result."""
        pending = self._pending
        try:
            try:
                flush = pending.decide(index, await rest)
            except Exception as exception:
                answer = pending.thrown(index, exception)
                if not isinstance(answer, bool):
                    self._begin_task()
                    answer = pending.recover(index, await answer)
                flush = answer
            if flush:
                self._loop.call_soon(self._flush)
        # A handler that raises SystemExit or KeyboardInterrupt would end the loop, and with it the program.
        except BaseException as unhandled:
            if isinstance(unhandled, asyncio.CancelledError) and ends_task(task, unhandled):
                unhandled = self._late()
            self._fail(index, unhandled)
        finally:
            self._ended(1)

    def _late(self) -> TimeoutError:
        return TimeoutError(f"no answer within {self._timeout} seconds, or the loop has ended")

    def _ended(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self._deadline.cancel()

    def _skip_rest(self) -> None:
        """Fail what no task has begun."""
        rest = range(self._next, self._count)
        self._next = self._count
        for index in rest:
            _coroutine_of(self._pending.awaitable(index)).close()
            self._fail(index, self._late())
        if rest:
            self._ended(len(rest))

    def _fail(self, index: int, unhandled: BaseException) -> None:
        self._pending.fail(index)
        self._failures += 1
        if self._failure is None:
            self._failure = (self._pending.method(index), unhandled)
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._pending.flush()
        if self._failure is not None:
            method, exception = self._failure
            _report(self._key, method, exception, self._failures)
            self._failure, self._failures = None, 0

    def _cancel(self) -> None:
        self._skip_rest()
        for task in self._tasks:
            task.cancel()


def _coroutine_of(awaitable: Awaitable[_T]) -> Coroutine[Any, Any, _T]:
    return awaitable if isinstance(awaitable, CoroutineType) else _wait_for(awaitable)


async def _wait_for(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


async def _raise(error: BaseException) -> object:
    raise error
