"""Moves a message to a dead-letter queue from the consumer's side, as the broker does from its own."""

from __future__ import annotations

import logging
from typing import Any, Final

from mqcore import errors
from mqcore.app.queues import DEAD_LETTER_ID, DROP, Found, create_dead_letters, is_queue
from mqcore.client import Client, Delivered
from mqcore.config import QueueOptions

__all__ = ["DeadLetters"]

_LOG: Final = logging.getLogger("mqcore.app")
_ERROR_CHARACTERS_MAX: Final = 500
_POLICY_SAVING: Final = "at-least-once"
_POLICY_MEMORY: Final = "memory"


class DeadLetters:
    """The dead-letter queue of one queue."""

    def __init__(self, client: Client, queue: str, found: Found) -> None:
        self._client = client
        self._queue = queue
        own = f"{queue.rpartition('/')[0]}/{DEAD_LETTER_ID}" if is_queue(queue) else DROP
        self._dead_letter = found.dead_letter or own

    async def take(self, message: Delivered[Any], reason: str, error: str) -> bool:
        """Publish a message there, then acknowledge it. Return whether that was possible.

        A crash between the two steps leaves a copy in both queues, and loses none. If it is not possible, because the
        client may not publish there for example, the message is rejected and the broker's retries continue.
        """
        target = self._dead_letter
        if target == DROP:
            _LOG.error(
                "dropped message %s of %s (%s: %s), as dead_letter=drop asks", message.id, self._queue, reason, error
            )
            return await message.ack()
        if self._client.protocol != "tmqp":
            _LOG.error("message %s of %s (%s: %s) is rejected", message.id, self._queue, reason, error)
            return await message.nack(reason)
        headers = [(key, value) for key, value in _pairs(message) if not key.lower().startswith("dead-letter-")]
        headers += [
            ("Dead-Letter-Reason", reason),
            ("Dead-Letter-Queue", self._queue),
            ("Dead-Letter-Attempts", str(message.attempt or 1)),
            ("Dead-Letter-Error", " ".join(error.split())[:_ERROR_CHARACTERS_MAX]),
        ]
        try:
            await self._publish(target, message, headers)
        except errors.MqcoreError as problem:
            _LOG.error(
                "cannot move message %s of %s to %s, so it is rejected: %s", message.id, self._queue, target, problem
            )
            return await message.nack(reason)
        _LOG.warning("moved message %s of %s to %s (%s: %s)", message.id, self._queue, target, reason, error)
        return await message.ack()

    async def _publish(self, target: str, message: Delivered[Any], headers: list[tuple[str, str]]) -> None:
        async def publish() -> None:
            await self._client.publish(
                target, message.raw, id=message.id or None, headers=headers, high_priority=message.high_priority
            )

        try:
            await publish()
        except errors.NotFound:
            # As the broker makes it: it saves if the broker can save.
            await create_dead_letters(self._client, target, _POLICY_SAVING)
            try:
                await publish()
            except errors.Unacceptable:
                await self._client.update_queue(target, QueueOptions(delivery_handler=_POLICY_MEMORY))
                await publish()


def _pairs(message: Delivered[Any]) -> list[tuple[str, str]]:
    headers = message.headers
    return [(key, value) for key in headers.keys() for value in headers.get_all(key)]  # noqa: SIM118 (not a mapping)
