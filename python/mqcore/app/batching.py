"""The loop of a batch subscriber, and the forms in which its handler gets a batch."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import typing
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec

from mqcore import errors
from mqcore._raised import ends_task
from mqcore.app.consuming import Subscriber, SubscriberParts
from mqcore.app.policies import AckPolicy
from mqcore.app.signature import Handler, columns_kind
from mqcore.client import Batch, Delivered
from mqcore.config import Duration

__all__ = ["BatchSubscriber", "form_of"]


class Decoded(Batch[Any]):
    """A batch whose bodies were decoded before the handler is called."""

    def __init__(self, batch: Batch[Any], bodies: list[Any]) -> None:
        super().__init__(batch._core, batch._wanted)
        self._span = batch._span
        self._bodies = bodies

    @property
    def bodies(self) -> list[Any]:
        """The bodies."""
        return self._bodies


class Rest(Batch[Any]):
    """The messages of a batch that have a body of the wanted type."""

    def __init__(self, batch: Batch[Any], messages: Sequence[Delivered[Any]]) -> None:
        super().__init__(batch._core, batch._wanted)
        self._span = batch._span
        self._messages = list(messages)

    @property
    def bodies(self) -> list[Any]:
        """Their bodies."""
        return [message.body for message in self._all()]

    async def ack(self) -> int:
        """Acknowledge those that are not settled."""
        return sum([await message.ack() for message in self._all() if not message.is_settled])

    async def nack(self, reason: str = "none", *, delay: Duration | None = None) -> int:
        """Reject those that are not settled."""
        return sum([await message.nack(reason, delay=delay) for message in self._all() if not message.is_settled])

    def __len__(self) -> int:
        return len(self._all())


class BatchSubscriber(Subscriber):
    """A batch subscriber of an app that runs."""

    def __init__(self, parts: SubscriberParts) -> None:
        super().__init__(parts)
        terms = parts.declaration.batch
        assert terms is not None
        self._batches: AsyncIterator[Batch[Any]] = self._consumer.batches(terms.max, wait=terms.wait)

    async def _take(self) -> Batch[Any] | None:
        """Wait for a batch; ``None``: the consumer is closed."""
        return await anext(self._batches, None)

    def _is_plain(self) -> bool:
        return False

    async def _handle(self, message: Batch[Any], task: asyncio.Task[Any] | None) -> None:
        """Call the handler with a batch, publish what it returns, and settle."""
        batch = message
        if self._policy is AckPolicy.ACK_FIRST:
            await batch.ack()
        if self._decodes_first:
            good = await self._decoded(batch)
            if good is None:
                return
            batch = good
        try:
            result = await self._parts.call(batch)
            if result is not None and self._parts.publish is not None:
                await self._parts.publish(result)
        except BaseException as error:
            if ends_task(task, error):
                raise
            self._log_failure(f"a batch of {len(batch)} messages", error)
            for each in batch:
                await self._settle_failed(each, error)
        else:
            if self._policy is not AckPolicy.MANUAL and self._policy is not AckPolicy.ACK_FIRST:
                await batch.ack()

    async def _decoded(self, batch: Batch[Any]) -> Batch[Any] | None:
        """Return the batch, or the rest of it if bodies cannot be decoded; ``None``: nothing is left."""
        try:
            return Decoded(batch, batch.bodies)
        except errors.BodyError:
            good = []
            for message in batch:
                try:
                    message.body  # noqa: B018 (decodes it)
                except errors.BodyError as error:
                    await self._undecodable(message, error)
                else:
                    good.append(message)
            return Rest(batch, good) if good else None


def form_of(handler: Handler) -> Callable[[Batch[Any]], Any]:
    """Return the function that makes the handler's argument of a batch."""
    annotation = handler.body_annotation
    if typing.get_origin(annotation) is list:
        element = next(iter(typing.get_args(annotation)), bytes)
        if (typing.get_origin(element) or element) is Delivered:
            return list
        return _bodies_of
    match columns_kind(annotation):
        case "pyarrow":
            return _table
        case "pyarrow-batch":
            return _record_batch
        case "numpy":
            return _arrays
        case _:
            return _bodies_of


def _bodies_of(batch: Batch[Any]) -> list[Any]:
    return batch.bodies


def _rows(batch: Batch[Any]) -> list[dict[str, Any]]:
    """Return the bodies as rows of a table; plain values are its column ``body``."""
    return [_row(body) for body in batch.bodies]


def _row(body: Any) -> dict[str, Any]:
    if hasattr(body, "model_dump"):
        return dict(body.model_dump())
    plain = msgspec.to_builtins(body, builtin_types=_BUILTIN)
    return plain if isinstance(plain, dict) else {"body": plain}


_BUILTIN: Final = (
    bytes,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)
"""Types of values that columns keep as they are."""


def _table(batch: Batch[Any]) -> Any:
    import pyarrow as pa

    return pa.Table.from_pylist(_rows(batch))


def _record_batch(batch: Batch[Any]) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(_rows(batch))


def _arrays(batch: Batch[Any]) -> dict[str, Any]:
    import numpy as np

    rows = _rows(batch)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name) for row in rows]) for name in names}
