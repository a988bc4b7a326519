"""The client without ``await``: the same Rust core, called by blocking.

::

    import mqcore.sync as mq

    with mq.connect("tmqp://localhost:2622", name="script") as client:
        client.publish("orders/1001", Order(1, "A", 2))
        for message in client.queue("orders", 1001).consume(Order, idle_timeout=5.0):
            with message.process():
                print(message.body)

It needs no event loop, so it works in threads, and where an event loop is running (which it then blocks). Blocking
calls let other threads run, and Ctrl-C raises `KeyboardInterrupt` within a tenth of a second. Threads may share a
client.

All modules of this package but `mqcore.sync.base` and `mqcore.sync.joining` are generated from `mqcore.client`.
"""

from mqcore.sync.client import Client, connect
from mqcore.sync.joining import Joined
from mqcore.sync.messages import Batch, Delivered, PulledBatch, Request
from mqcore.sync.queue import Queue
from mqcore.sync.streams import Consumer, Events, ExtensionFrames, PullStream, Requests
from mqcore.sync.topic import Topic

__all__ = [
    "Batch",
    "Client",
    "Consumer",
    "Delivered",
    "Events",
    "ExtensionFrames",
    "Joined",
    "PullStream",
    "PulledBatch",
    "Queue",
    "Request",
    "Requests",
    "Topic",
    "connect",
]
