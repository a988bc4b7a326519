"""A connection as kombu uses it: its channels share one link and watch one descriptor."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from kombu.exceptions import ChannelError

from mqcore import errors
from mqcore._core import Frame
from mqcore.celery.channel import Channel, Consumer
from mqcore.celery.endpoint import Endpoint
from mqcore.celery.link import Link, header_of
from mqcore.celery.naming import QUEUE_ID, channel_of
from mqcore.celery.queues import JOIN, LEAVE, Queues

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Connection", "Options"]

_LOG: Final = logging.getLogger("mqcore.celery")

_UNSTARTED: Final = b"Nack-Reason:consumer-closed\r\nUnstarted:yes\r\n"
# A consumer that acknowledges on receipt has no prefetch count; this bounds what waits in this process.
_NO_ACK_PREFETCH: Final = 1000
# Messages that `drain_events` delivers before it returns.
_DRAIN_MAX: Final = 256

# Options of other transports, which projects keep when they move.
_FOREIGN_OPTIONS: Final = re.compile(
    "body_encoding|callback|client_name|confirm_timeout|deadletter_queue|errback|fanout_.*|global_keyprefix|"
    "health_check_interval|interval_.*|max_connections|max_retries|polling_interval|priority_steps|"
    "queue_order_strategy|queue_prefix|retry_.*|sep|socket_.*|unacked_.*|visibility_timeout|wait_for_.*"
)


@dataclass(frozen=True, slots=True)
class Options:
    """The members of ``broker_transport_options`` that this transport knows."""

    confirm_publish: bool = True
    """Wait for the broker's confirmation of each message."""
    delay_eta: bool = True
    """Let the broker hold tasks with an ETA until they are due, instead of a worker."""
    policy: str | None = None
    """The policy of durable queues. Default: ``at-least-once`` if the broker has a data directory."""
    request_timeout: float = 15.0
    """Seconds to wait for the broker's answer."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Read a dictionary. Names that no transport knows are logged: they may be misspelled."""
        known = {field.name for field in fields(cls)}
        if unknown := [name for name in given if name not in known and not _FOREIGN_OPTIONS.fullmatch(name)]:
            _LOG.warning("unknown transport options %s; known are %s", ", ".join(unknown), ", ".join(sorted(known)))
        return cls(**{name: value for name, value in given.items() if name in known})


class _Subscription:
    """The consumers of one queue, and messages that they have not taken."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.consumers: deque[Consumer] = deque()
        self.inbox: deque[Frame] = deque()

    @property
    def prefetch(self) -> int:
        """Maximum number of unsettled messages; 0: no limit."""
        counts = [_NO_ACK_PREFETCH if each.no_ack else each.channel.prefetch_count for each in self.consumers]
        return 0 if 0 in counts else sum(counts)

    def take(self) -> tuple[Frame, Consumer] | None:
        """Take a message for the next consumer that may have one."""
        if not self.inbox:
            return None
        for _ in range(len(self.consumers)):
            consumer = self.consumers[0]
            self.consumers.rotate(-1)
            if consumer.channel.can_take(consumer):
                return self.inbox.popleft(), consumer
        return None


class Connection:
    """A connection to the broker. kombu makes another one if this one is lost."""

    def __init__(self, endpoint: Endpoint, vhost: str, options: Options, client: object) -> None:
        self.client = client
        """The `kombu.Connection` that this one belongs to."""
        self.vhost = vhost
        self.options = options
        self.exchanges: dict[str, str] = {}
        """Types of declared exchanges by name."""
        self.channels: set[Channel] = set()
        self.loop: Any = None
        """The event loop that watches this connection, if any."""
        self._subscriptions: dict[str, _Subscription] = {}
        self._got: deque[Frame] = deque()
        self._getting: str | None = None
        self._is_delivery_scheduled = False
        self.link = Link(endpoint)
        self.queues = Queues(self.link, vhost, options.policy)

    @property
    def connected(self) -> bool:
        """Whether it is open."""
        return self.link.is_connected

    def channel(self) -> Channel:
        """Open a channel."""
        self.link.check()
        channel = Channel(self)
        self.channels.add(channel)
        return channel

    def close(self) -> None:
        """Close all channels, and the connection."""
        for channel in list(self.channels):
            channel.close()
        self.link.close()

    def collect(self) -> None:
        """Release everything without telling the broker, for a forked child or a lost connection."""
        for channel in list(self.channels):
            channel.connection = None
        self.channels.clear()
        self._subscriptions.clear()
        self.link.abandon()

    # --- consumers -------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Subscribe. Raises `NotFound`, and `ChannelError` for a queue of another kind than Celery's."""
        channel = channel_of(self.vhost, consumer.queue)
        subscription = self._subscriptions.setdefault(channel, _Subscription(channel))
        subscription.consumers.append(consumer)
        try:
            answer = self._join(consumer.queue, channel, subscription.prefetch)
            if header_of(answer, "Acknowledge-Timeouts") == "0":
                self.link.tell(LEAVE, channel, _terms(None))
                raise ChannelError(
                    f"PRECONDITION_FAILED - queue {channel}/{QUEUE_ID} requests no acknowledgements; remove it, or use "
                    "another virtual host",
                    (60, 20),
                    "Channel.basic_consume",
                    "406",
                )
        except BaseException:
            subscription.consumers.remove(consumer)
            if not subscription.consumers:
                del self._subscriptions[channel]
            raise
        self.deliver_soon()

    def _join(self, queue: str, channel: str, prefetch: int) -> Frame:
        try:
            return self.link.ask(JOIN, channel, _terms(prefetch))
        except errors.NotFound:
            # The broker removes a temporary queue whose messages have expired, even before its first consumer.
            if not self.queues.restore(queue):
                raise
            return self.link.ask(JOIN, channel, _terms(prefetch))

    def remove_consumer(self, consumer: Consumer) -> None:
        """End a subscription. Messages that no consumer took return to their queue."""
        channel = channel_of(self.vhost, consumer.queue)
        subscription = self._subscriptions.get(channel)
        if subscription is None or consumer not in subscription.consumers:
            return
        subscription.consumers.remove(consumer)
        if subscription.consumers:
            self.link.tell(JOIN, channel, _terms(subscription.prefetch))
            return
        del self._subscriptions[channel]
        self._return(subscription.inbox)
        # It may have been removed meanwhile.
        with contextlib.suppress(errors.NotFound):
            self.link.ask(LEAVE, channel, _terms(None))

    def refresh_prefetch(self, channel: Channel) -> None:
        """Tell the broker the new prefetch count of a channel."""
        for name in {channel_of(self.vhost, consumer.queue) for consumer in channel.consumers}:
            self.link.tell(JOIN, name, _terms(self._subscriptions[name].prefetch))
        self.deliver_soon()

    def get(self, queue: str) -> Frame | None:
        """Take one message of a queue, if there is one. Raises `NotFound` if there is no such queue."""
        channel = channel_of(self.vhost, queue)
        subscription = self._subscriptions.get(channel)
        if subscription is not None:
            self.link.receive(0)
            self._sort()
            return subscription.inbox.popleft() if subscription.inbox else None
        self._getting = channel
        try:
            self.link.ask(JOIN, channel, _terms(1))
            self._sort()
            if not self._got:
                # The broker delivers before it answers the next request about this queue.
                self.link.ask(JOIN, channel, _terms(1))
                self._sort()
            delivery = self._got.popleft() if self._got else None
            self.link.ask(LEAVE, channel, _terms(None))
        finally:
            self._getting = None
        self._sort()
        self._return(self._got)
        return delivery

    # --- events ----------------------------------------------------------------------------------------------------

    def drain_events(self, timeout: float | None = None) -> None:
        """Deliver messages; wait at most `timeout` seconds for the first. Raises `TimeoutError` if none comes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._deliver():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.link.receive(left) and left is not None:
                raise TimeoutError("no message came in time")
        # Delivers more messages while they arrive without waiting.
        for _ in range(_DRAIN_MAX):
            if not self._deliver() and not self.link.receive(0.0):
                return

    def on_readable(self) -> None:
        """Read what has arrived, and deliver it."""
        self.link.receive(0.0)
        while self._deliver():
            pass

    def deliver_soon(self) -> None:
        """Let the event loop deliver messages that arrived before an answer, or that the prefetch count allows now."""
        if self.loop is None or self._is_delivery_scheduled:
            return
        if self.link.deliveries or any(each.inbox for each in self._subscriptions.values()):
            self._is_delivery_scheduled = True
            self.loop.call_soon(self._deliver_scheduled)

    def _deliver_scheduled(self) -> None:
        self._is_delivery_scheduled = False
        while self.link.is_connected and self._deliver():
            pass

    def _deliver(self) -> int:
        """Deliver at most one message of each queue, and return how many."""
        self._sort()
        count = 0
        for subscription in list(self._subscriptions.values()):
            taken = subscription.take()
            if taken is not None:
                count += 1
                delivery, consumer = taken
                consumer.channel.deliver(delivery, consumer)
        return count

    def _sort(self) -> None:
        deliveries = self.link.deliveries
        while deliveries:
            delivery = deliveries.popleft()
            name = delivery.target.decode()
            subscription = self._subscriptions.get(name)
            if subscription is not None:
                subscription.inbox.append(delivery)
            elif name == self._getting:
                self._got.append(delivery)
            else:
                self._return(deque([delivery]))

    def _return(self, deliveries: deque[Frame]) -> None:
        """Return messages to their old positions; the latest first, as each goes before those behind it."""
        while deliveries:
            self.link.settle(deliveries.pop(), _UNSTARTED)


def _terms(prefetch: int | None) -> dict[str, str]:
    ids = {"Queue-Ids": str(QUEUE_ID)}
    return ids if prefetch is None else ids | {"Prefetch": str(prefetch)}
