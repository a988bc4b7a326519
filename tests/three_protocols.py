"""A broker for the protocols of the Python client: TMQP, MQKS and MicroMessage2."""

from __future__ import annotations

import mqcore

SCHEMES = ("tmqp", "mqks", "mm2")


def three_protocols() -> mqcore.Broker:
    """A broker with a listener for each protocol; two shards, so that topics and queues are on different ones."""
    return mqcore.Broker(listen=[f"{scheme}://127.0.0.1:0" for scheme in SCHEMES], shards=2)


def url_of(broker: mqcore.Broker, scheme: str) -> str:
    return next(url for url in broker.listeners if url.startswith(f"{scheme}://"))
