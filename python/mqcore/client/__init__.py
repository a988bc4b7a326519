"""The asyncio client: publishing, consuming, pulling, requests, events and administration.

::

    async with mqcore.connect("tmqp://localhost:2622", name="shop") as mq:
        receipt = await mq.publish("orders/1001", Order(7, "B-2", 1))
        async with mq.queue("orders", 1001).consume(Order, prefetch=50) as messages:
            async for message in messages:
                async with message.process():
                    print(message.body.sku)

The connection runs in threads that do not need Python: it answers pings and reconnects while Python is busy. Consumers
and event subscriptions are restored after every reconnect. Calls in flight when a connection is lost raise
`ConnectionLost`; nothing is sent twice unless `retry` allows it.

The URL selects the protocol. With ``mqks://``, publishing and consuming work the same way; a name to publish to is an
*event* there, and a queue gets the messages of the events that it is bound to, see `Queue.consume`. A feature that a
protocol does not have raises `NotSupported`.

`mqcore.sync` is the same client without ``await``; `tools/generate_sync.py` generates it from this package.
"""

from mqcore.client.client import Client, connect
from mqcore.client.incoming import Incoming
from mqcore.client.joining import Joined
from mqcore.client.messages import Batch, Delivered, PulledBatch, Request
from mqcore.client.models import (
    ChannelInformation,
    ClientCounters,
    ClientInformation,
    CopyReceipt,
    Event,
    NodeInformation,
    QueueInformation,
    Receipt,
    RouterInformation,
    RouterStep,
    RouterTest,
    State,
)
from mqcore.client.options import (
    DEFAULT_URL,
    PREFETCH,
    ClientOptions,
    ConnectOptions,
    ConsumeOptions,
    EmbeddedBroker,
    without_credentials,
)
from mqcore.client.queue import Queue
from mqcore.client.streams import REASON_CLOSED, Consumer, Events, ExtensionFrames, PullStream, Requests
from mqcore.client.topic import Topic

__all__ = [
    "DEFAULT_URL",
    "PREFETCH",
    "REASON_CLOSED",
    "Batch",
    "ChannelInformation",
    "Client",
    "ClientCounters",
    "ClientInformation",
    "ClientOptions",
    "ConnectOptions",
    "ConsumeOptions",
    "Consumer",
    "CopyReceipt",
    "Delivered",
    "EmbeddedBroker",
    "Event",
    "Events",
    "ExtensionFrames",
    "Incoming",
    "Joined",
    "NodeInformation",
    "PullStream",
    "PulledBatch",
    "Queue",
    "QueueInformation",
    "Receipt",
    "Request",
    "Requests",
    "RouterInformation",
    "RouterStep",
    "RouterTest",
    "State",
    "Topic",
    "connect",
    "without_credentials",
]
