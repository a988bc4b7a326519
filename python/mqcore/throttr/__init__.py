"""A client of Throttr: counters and buffers that expire, channels, and statistics of all of them.

::

    from mqcore.throttr import Client

    async with Client("throttr://127.0.0.1:9000?value=uint64") as client:
        await client.insert("user:7", quota=100, ttl=60)
        if await client.decrease("user:7", 1):
            ...
        async with client.pipeline() as pipe:            # one write, one round trip
            pipe.insert("user:8", quota=100, ttl=60)
            pipe.decrease("user:8", 1)
        print(pipe.results)

`SyncClient` is the same without ``await``; `tools/generate_sync.py` generates it. Settings that the wire does not
announce stand in the URL, as in that of the listener: ``value`` (``uint8``, ``uint16``, ``uint32``, ``uint64``; default
``uint16``), ``protocol`` (``7.1``, ``7.3``) and ``metrics``. ``throttrs://`` is TLS, ``throttr+unix:///path`` a Unix
socket.

A client connects when it is first used, and again after a loss. Calls in flight then raise
`mqcore.errors.ConnectionLost`: nothing is sent twice. Subscriptions are restored.
"""

import atexit

from mqcore import _core
from mqcore.throttr.client import Client, Pipeline
from mqcore.throttr.models import (
    Algorithm,
    Buffer,
    ChannelInformation,
    Connection,
    Counter,
    Information,
    Key,
    Message,
    Mode,
    Rule,
    Subscriber,
    Unit,
    Uses,
)
from mqcore.throttr.sync_client import SyncClient, SyncPipeline

__all__ = [
    "Algorithm",
    "Buffer",
    "ChannelInformation",
    "Client",
    "Connection",
    "Counter",
    "Information",
    "Key",
    "Message",
    "Mode",
    "Pipeline",
    "Rule",
    "Subscriber",
    "SyncClient",
    "SyncPipeline",
    "Unit",
    "Uses",
]

# The thread that wakes event loops must end before Python does. A second call does nothing.
atexit.register(_core.end_delivering)
