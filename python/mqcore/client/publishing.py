"""Publishing: one message or many, with confirmation or without."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Literal, overload

from mqcore import _tracing as tracing
from mqcore import bodies, errors
from mqcore.client.arguments import (
    UNCONFIRMED,
    Outcome,
    chunks,
    copies,
    new_id,
    numbered,
    optional_seconds,
    pairs,
    publish_options,
    receipt,
    receipts,
    terms,
)
from mqcore.client.control import ControlBase
from mqcore.client.models import Receipt
from mqcore.client.options import Copies, Headers
from mqcore.config import Duration

__all__ = ["PublishingBase"]


class PublishingBase(ControlBase):
    """Publishing to queues and topics."""

    async def publish(
        self,
        queue: str,
        body: object,
        *,
        id: str | None = None,  # noqa: A002 (as in the protocol)
        headers: Headers = (),
        high_priority: bool = False,
        confirm: bool = True,
        cc: Copies = (),
        timeout: Duration | None = None,
        retry: bool = False,
        delay: Duration | None = None,
        expires_in: Duration | None = None,
        priority: int | None = None,
    ) -> Receipt:
        """Publish a message and wait for the confirmation.

        Raises `NotFound` if the queue does not exist, `Nacked` if the message was rejected, `ConfirmTimeout` if no
        confirmation came within `timeout`. With ``confirm=False`` the call returns when the message is queued for
        writing, and rejections are only counted; it waits only while there is no connection, or no room for output.
        With ``retry=True``, which needs an `id`, the client publishes again when the connection was lost before the
        confirmation, and while the queue then answers that it is busy: it may still be saving the first copy.
        An empty `id`, with ``confirm=False``, publishes without an id; the queue assigns one unless its option
        `use_message_id` is off.

        Each queue in `cc` (at most 64) gets a copy; ``("audit/1", "copy-7")`` chooses its id. The call also waits for
        the confirmations of the copies. ``Receipt.copies`` has their outcomes, ``Receipt.rejected`` the rejected ones.
        An exception concerns the message itself: queues of `cc` may have accepted their copies.

        The queue delivers the message after `delay`, and drops it as ``expired`` if it still waits after `expires_in`,
        which includes the delay. Messages with a higher `priority`, 0 to 255, go first; `high_priority` is 255. All of
        this is saved with the message. In TMQP `queue` may be a topic, ``@topic:NAME``; see `Topic.publish`.

        In MQKS `queue` is an event, and the broker accepts the message whether or not a queue is bound to it. Headers,
        delays, expiries, priorities and copies raise `NotSupported`; an empty body and one with line ends, TABs or
        trailing white space raise `InvalidArgument`, because a line cannot hold them.
        In MicroMessage2 `queue` is a destination: a queue or ``topic/NAME``. Headers are properties of the message,
        `mqcore.micromessage.headers` gives them types. The receipt is the broker's acknowledgement; ``confirm=True``
        raises `NotSupported` without agreed acknowledgements. Ids, delays, expiries, priorities and copies always do.

        >>> receipt = await mq.publish("orders/1", b"2 apples", headers={"Country": "fr"})
        >>> receipt.by
        'server'
        """
        core = self._core or self._connected()
        if tracing.active is not None and type(headers) is not tracing.Propagated:
            with tracing.sending("publish", queue, headers, 1, carries=core.protocol != "mqks") as headers:
                # Not the method of a subclass, which has made its changes already.
                return await PublishingBase.publish(
                    self,
                    queue,
                    body,
                    id=id,
                    headers=headers,
                    high_priority=high_priority,
                    confirm=confirm,
                    cc=cc,
                    timeout=timeout,
                    retry=retry,
                    delay=delay,
                    expires_in=expires_in,
                    priority=priority,
                )
        waiting = core.publish(
            queue,
            body if type(body) is bytes else bodies.encode(body),
            id if self._options.id_generator is None else new_id(id, self._options),
            pairs(headers) if headers else None,
            high_priority,
            confirm,
            copies(cc) if cc else None,
            None if timeout is None else optional_seconds(timeout),
            retry,
            None if delay is None and expires_in is None and priority is None else terms(priority, delay, expires_in),
        )
        if waiting is None:
            return UNCONFIRMED
        # asyncio only
        try:
            confirmation = await waiting
        except BaseException:
            core.abandon(waiting)
            raise
        # end asyncio only
        # blocking: confirmation = waiting
        return UNCONFIRMED if confirmation is None else receipt(confirmation)

    @overload
    async def publish_many(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Headers = ...,
        high_priority: bool = ...,
        confirm: bool = ...,
        cc: Copies = ...,
        timeout: Duration | None = ...,
        delay: Duration | None = ...,
        expires_in: Duration | None = ...,
        priority: int | None = ...,
        return_exceptions: Literal[False] = ...,
    ) -> list[Receipt]: ...
    @overload
    async def publish_many(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Headers = ...,
        high_priority: bool = ...,
        confirm: bool = ...,
        cc: Copies = ...,
        timeout: Duration | None = ...,
        delay: Duration | None = ...,
        expires_in: Duration | None = ...,
        priority: int | None = ...,
        return_exceptions: Literal[True],
    ) -> list[Receipt | errors.MqcoreError]: ...
    async def publish_many(
        self,
        queue: str,
        bodies: Iterable[object],
        *,
        headers: Headers = (),
        high_priority: bool = False,
        confirm: bool = True,
        cc: Copies = (),
        timeout: Duration | None = None,
        delay: Duration | None = None,
        expires_in: Duration | None = None,
        priority: int | None = None,
        return_exceptions: bool = False,
    ) -> list[Receipt] | list[Receipt | errors.MqcoreError]:
        """Publish many messages in order, with few writes; return their receipts in that order.

        If some fail, the others are still published, and the first failure is raised with a note that counts the
        failures. With `return_exceptions`, the list holds an exception in place of each missing receipt.
        """
        outcomes: list[Outcome] = []
        core = self._connected()
        count = len(bodies) if isinstance(bodies, Sized) else None
        with tracing.sending("publish", queue, headers, count, carries=core.protocol != "mqks") as headers:
            options = publish_options(headers, high_priority, confirm, cc, timeout, terms(priority, delay, expires_in))
            for chunk in chunks(bodies):
                if self._options.id_generator is None or cc:
                    outcomes += await core.publish_many(queue, chunk, **options)
                    continue
                waiting = {name: options[name] for name in ("high_priority", "confirm", "timeout", "terms")}
                outcomes += await core.publish_each(queue, numbered(chunk, self._options, headers), **waiting)
            return receipts(outcomes, return_exceptions)
