"""The loop of a subscriber: takes messages, calls the handler, publishes results and settles."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mqcore import errors
from mqcore._coroutines import rest_of
from mqcore._raised import ends_task, reason_of, text_of
from mqcore.app.calling import Call
from mqcore.app.dead_letters import DeadLetters
from mqcore.app.declarations import SubscriberDeclaration
from mqcore.app.policies import AckPolicy, BadBody, Reject
from mqcore.client import REASON_CLOSED, Batch, Consumer, Delivered

__all__ = ["BAD_BODY", "REJECTED", "Publish", "Subscriber", "SubscriberParts", "failure_text"]

_LOG: Final = logging.getLogger("mqcore.app")

REJECTED: Final = "rejected"
"""The header ``Dead-Letter-Reason`` of a message that its handler rejected for good."""
BAD_BODY: Final = "bad-body"
"""The header ``Dead-Letter-Reason`` of a message whose body could not be decoded."""

_EXTENSION_SECONDS_MAX: Final = 10.0
"""Time between two extensions of the acknowledge timeout at most."""
_EXTENSIONS_PER_TIMEOUT: Final = 3

_FAILURE_CHARACTERS_MAX: Final = 500

Publish: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Publishes the result of a handler."""


@dataclass(frozen=True, slots=True)
class SubscriberParts:
    """The parts of a subscriber."""

    declaration: SubscriberDeclaration
    name: str
    """The name of its handler."""
    consumer: Consumer[Any]
    call: Call
    decodes: bool
    """Whether bodies are decoded, so that a message can have a bad one."""
    publish: Publish | None
    dead_letters: DeadLetters
    protocol: str
    acknowledge_timeout: float
    """Seconds; 0: unknown, or not to be extended."""


class Subscriber:
    """A subscriber of an app that runs."""

    def __init__(self, parts: SubscriberParts) -> None:
        self.name = parts.name
        self.queue = parts.declaration.queue
        self.tasks: list[asyncio.Task[None]] = []
        self.taken = 0
        """Messages or batches that it took."""
        self._parts = parts
        self._consumer = parts.consumer
        self._policy = parts.declaration.ack_policy
        self._decodes_first = parts.decodes and parts.declaration.on_bad_body is not BadBody.RAISE
        self._is_stopping = False
        self._running: dict[int, Any] = {}
        """The message or batch of each loop, by the place of the loop."""
        self._holder: int | None = None
        """The loop that may take the next message."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Loops that wait for their turn to take one."""
        self._closing: asyncio.Future[None] | None = None
        self._extending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to receive. Raises what `Queue.consume` raises."""
        await self._consumer.__aenter__()

    def start(self) -> None:
        """Start the loops that call the handler."""
        concurrency = self._parts.declaration.concurrency
        loops: list[Coroutine[Any, Any, None]] = (
            [self._one_by_one()] if concurrency == 1 else [self._side_by_side(place) for place in range(concurrency)]
        )
        self.tasks = [asyncio.create_task(loop, name=f"{self.name} of {self.queue}") for loop in loops]
        if self._parts.acknowledge_timeout:
            self._extending = asyncio.create_task(self._extend_timeouts(), name=f"timeouts of {self.queue}")

    def stop(self) -> None:
        """Take nothing more. Messages that were not started return to their queue; running handlers finish."""
        self._is_stopping = True
        # The broker takes back what running handlers of other protocols work on when their consumer closes.
        if self._parts.protocol == "tmqp" or not self._running:
            self._close_soon()
        for _, turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()

    async def close(self) -> None:
        """Close the consumer, if that has not happened."""
        self._is_stopping = True
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.gather(self._extending, return_exceptions=True)
        await self._close_soon()

    def _close_soon(self) -> asyncio.Future[None]:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._consumer.__aexit__(None, None, None))
        return self._closing

    @property
    def is_busy(self) -> bool:
        """Whether a handler runs, or a message waits for one."""
        core = self._consumer._core
        return bool(self._running or self._consumer._taken or (core is not None and core.waiting))

    def running(self) -> Sequence[Any]:
        """Return the messages or batches that handlers work on."""
        return tuple(self._running.values())

    # --- loops -----------------------------------------------------------------------------------------------------

    async def _take(self) -> Any:
        """Wait for a message; ``None``: the consumer is closed."""
        return await anext(self._consumer, None)

    async def _one_by_one(self) -> None:
        """Handle messages in their order."""
        running = self._running
        task = asyncio.current_task()
        handle = self._handle_plainly if self._is_plain() else self._handle
        while not self._is_stopping:
            message = await self._take()
            if message is None or self._is_stopping:
                await _return_unstarted(message)
                break
            self.taken += 1
            running[0] = message
            if (rest := _begin(handle(message, task))) is not None:
                await rest
            running.clear()
        self._ended()

    async def _side_by_side(self, place: int) -> None:
        """Handle messages beside the other loops. One at a time waits for a message; it passes that on to another loop
        when its handler waits for something. A handler that waits for nothing costs no switch to another task.
        """
        running = self._running
        task = asyncio.current_task()
        handle = self._handle_plainly if self._is_plain() else self._handle
        try:
            while not self._is_stopping and await self._turn(place):
                message = await self._take()
                if message is None or self._is_stopping:
                    await _return_unstarted(message)
                    break
                self.taken += 1
                running[place] = message
                try:
                    if (rest := _begin(handle(message, task))) is not None:
                        self._pass_on()
                        await rest
                finally:
                    del running[place]
        finally:
            if self._holder == place:
                self._pass_on()
        self._ended()

    async def _turn(self, place: int) -> bool:
        """Wait until this loop may take a message; return false if it is to end."""
        if self._holder is None:
            self._holder = place
        if self._holder == place:
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((place, turn))
        await turn
        return not self._is_stopping

    def _pass_on(self) -> None:
        """Let the loop that waits longest take the next message."""
        self._holder = None
        while self._waiting:
            place, turn = self._waiting.popleft()
            if not turn.done():
                self._holder = place
                turn.set_result(None)
                return

    def _ended(self) -> None:
        """End a loop: close after the last handler. Raises `ConnectionLost` if nothing asked the loop to end."""
        if not self._is_stopping:
            raise errors.ConnectionLost(
                f"subscriber {self.name} of {self.queue} receives nothing more, because its client was closed or has "
                "given up reconnecting; start the app again, or raise reconnect_attempts",
                sent=False,
            )
        if not self._running:
            self._close_soon()

    # --- one message -----------------------------------------------------------------------------------------------

    def _is_plain(self) -> bool:
        """Whether messages need nothing but a call and an acknowledgement."""
        return self._parts.publish is None and self._policy in {AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR}

    async def _handle_plainly(self, message: Delivered[Any], task: asyncio.Task[Any] | None) -> None:
        """Do what `_handle` does in the most frequent case, with fewer steps."""
        if self._decodes_first:
            try:
                message.body  # noqa: B018 (decodes it)
            except errors.BodyError as error:
                await self._undecodable(message, error)
                return
        try:
            await self._parts.call(message)
        except BaseException as error:
            if ends_task(task, error):
                raise
            await self._failed(message, error)
        else:
            await message.ack()

    async def _handle(self, message: Any, task: asyncio.Task[Any] | None) -> None:
        """Call the handler with a message, publish what it returns, and settle."""
        policy = self._policy
        if policy is AckPolicy.ACK_FIRST:
            await message.ack()
        if self._decodes_first:
            try:
                message.body  # noqa: B018 (decodes it)
            except errors.BodyError as error:
                await self._undecodable(message, error)
                return
        try:
            result = await self._parts.call(message)
            if result is not None and self._parts.publish is not None:
                await self._parts.publish(result)
        # A handler that raises SystemExit or KeyboardInterrupt would end the loop, and with it the program.
        except BaseException as error:
            if ends_task(task, error):
                raise
            await self._failed(message, error)
        else:
            if policy is not AckPolicy.MANUAL and policy is not AckPolicy.ACK_FIRST:
                await message.ack()

    async def _failed(self, message: Delivered[Any], error: BaseException) -> None:
        """Settle a message whose handler raised."""
        self._log_failure(f"message {message.id}", error)
        await self._settle_failed(message, error)

    def _log_failure(self, what: str, error: BaseException) -> None:
        if isinstance(error, Reject):
            _LOG.warning("%s of %s rejected %s: %s", self.name, self.queue, what, text_of(error))
        else:
            _LOG.error("%s of %s failed for %s", self.name, self.queue, what, exc_info=error)

    async def _settle_failed(self, message: Delivered[Any], error: BaseException) -> None:
        if message.is_settled:
            return
        if isinstance(error, Reject) or self._policy is AckPolicy.REJECT_ON_ERROR:
            await self._parts.dead_letters.take(message, REJECTED, failure_text(error))
        elif self._policy is AckPolicy.NACK_ON_ERROR:
            await self._nack(message, error)
        elif self._policy is AckPolicy.ACK:
            await message.ack()

    async def _undecodable(self, message: Delivered[Any], error: errors.BodyError) -> None:
        """Settle a message whose body is not of the handler's type."""
        _LOG.error("%s of %s cannot decode message %s: %s", self.name, self.queue, message.id, text_of(error))
        if message.is_settled:
            return
        if self._parts.declaration.on_bad_body is BadBody.DEAD_LETTER:
            await self._parts.dead_letters.take(message, BAD_BODY, text_of(error))
        else:
            await self._nack(message, error)

    async def _nack(self, message: Delivered[Any], error: BaseException) -> None:
        if self._parts.protocol != "tmqp":
            # The others have no delays, and only short reasons.
            await message.nack(reason_of(error))
            return
        retry = self._parts.declaration.retry
        delay = None if retry is None else retry.delay(message.attempt or 1)
        await message.nack(failure_text(error), delay=delay)

    async def _extend_timeouts(self) -> None:
        """Extend the acknowledge timeout of messages that handlers work on."""
        interval = min(self._parts.acknowledge_timeout / _EXTENSIONS_PER_TIMEOUT, _EXTENSION_SECONDS_MAX)
        while True:
            await asyncio.sleep(interval)
            for message in self.running():
                for each in message if isinstance(message, Batch) else (message,):
                    if not each.is_settled:
                        await each.working()


def failure_text(error: BaseException) -> str:
    """Return the type and the text of an exception on one line, as the header ``Dead-Letter-Error`` has it."""
    return " ".join(f"{type(error).__name__}: {text_of(error)}".split())[:_FAILURE_CHARACTERS_MAX].rstrip(": ")


async def _return_unstarted(message: Delivered[Any] | Batch[Any] | None) -> None:
    """Return a message that arrived while the subscriber stops, as its consumer would."""
    if message is not None:
        await message.nack(REASON_CLOSED)


def _begin(work: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Run a coroutine with context variables of its own, as in a task, until it waits for something. Return the rest of
    it; ``None``: it has ended.
    """
    context = copy_context()
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    return rest_of(work, context, awaited)
