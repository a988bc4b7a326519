"""AMQP names as names of mqcore. Two AMQP names never share one: every character that could clash is escaped.

A queue is queue 0 of a channel with its name. An exchange is a prefix of topics: publishing to exchange ``logs`` with
the routing key ``app.error`` publishes to the topic ``kombu:logs.app.error``, and queues are bound to topics.
"""

from __future__ import annotations

import functools
import itertools
from typing import Final

from mqcore.errors import InvalidArgument

__all__ = ["KEY_WORDS_MAX", "QUEUE_ID", "address_of", "binding_topics", "channel_of", "topic_of"]

QUEUE_ID: Final = 0
"""The queue of each channel that stands for the AMQP queue."""

KEY_WORDS_MAX: Final = 16
"""Words of a routing key that ``#`` in a topic exchange, and a fanout exchange, can match."""

_NAME_BYTES_MAX: Final = 255
# With the prefix `@topic:`, a topic is the target of a frame, which has at most 255 bytes.
_TOPIC_BYTES_MAX: Final = 248
_BINDINGS_MAX: Final = 256

_LOWER: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_CHANNEL_PLAIN: Final = _LOWER | frozenset(b".")
# Topics are compared byte by byte, channels without regard to case.
_WORD_PLAIN: Final = _LOWER | frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ@")


def _escaped(name: str, plain: frozenset[int]) -> str:
    return "".join(chr(byte) if byte in plain else f"%{byte:02x}" for byte in name.encode("utf-8", "surrogatepass"))


def _vhost_prefix(vhost: str) -> str:
    """Return what keeps the names of a virtual host apart: nothing for the default one."""
    vhost = vhost.strip("/")
    return f"{_escaped(vhost, _CHANNEL_PLAIN)}:" if vhost else ""


@functools.lru_cache(maxsize=4096)
def channel_of(vhost: str, queue: str) -> str:
    """Return the channel of an AMQP queue. Raises `InvalidArgument` if its name is too long.

    >>> channel_of("/", "celery"), channel_of("shop", "Mail@eu")
    ('celery', 'shop:%4dail%40eu')
    """
    channel = _vhost_prefix(vhost) + _escaped(queue, _CHANNEL_PLAIN)
    if not queue or len(channel) > _NAME_BYTES_MAX:
        raise InvalidArgument(
            f"queue name {queue!r} needs {len(channel)} bytes as a channel; use 1 to {_NAME_BYTES_MAX} "
            "(a capital or a special character needs 3)"
        )
    return channel


def address_of(vhost: str, queue: str) -> str:
    """Return the address of an AMQP queue as mqcore's tools show it: ``celery/0``."""
    return f"{channel_of(vhost, queue)}/{QUEUE_ID}"


@functools.lru_cache(maxsize=4096)
def topic_of(vhost: str, exchange: str, routing_key: str) -> str:
    """Return the topic of an exchange and a routing key. Raises `InvalidArgument` if it is too long.

    >>> topic_of("/", "logs", "app.error")
    'kombu:logs.app.error'
    """
    return _topic(vhost, exchange, [_escaped(word, _WORD_PLAIN) for word in _words(routing_key)])


def binding_topics(vhost: str, exchange: str, kind: str, routing_key: str) -> list[str]:
    """Return the topics and patterns that a binding stands for.

    mqcore has no pattern for any number of words, so ``#`` becomes one pattern for each number of words up to
    `KEY_WORDS_MAX`. Raises `InvalidArgument` if a key has too many of them.

    >>> binding_topics("/", "logs", "topic", "app.*")
    ['kombu:logs.app.*']
    >>> len(binding_topics("/", "logs", "fanout", ""))
    17
    """
    if kind == "direct":
        return [topic_of(vhost, exchange, routing_key)]
    words = _words("#" if kind == "fanout" else routing_key)
    # `#.#` matches what `#` matches.
    words = [word for word, before in zip(words, ["", *words], strict=False) if not word == before == "#"]
    fixed = [["*" if word == "*" else _escaped(word, _WORD_PLAIN)] for word in words if word != "#"]
    room = range(KEY_WORDS_MAX - len(fixed) + 1)
    if len(room) ** words.count("#") > _BINDINGS_MAX or (not room and "#" in words):
        raise InvalidArgument(f"binding key {routing_key!r} has too many words beside '#'; use fewer of both")
    plain = iter(fixed)
    parts = [[["*"] * count for count in room] if word == "#" else [next(plain)] for word in words]
    chosen = {tuple(itertools.chain.from_iterable(choice)) for choice in itertools.product(*parts)}
    return [
        _topic(vhost, exchange, list(choice))
        for choice in sorted(chosen, key=lambda choice: (len(choice), choice))
        if len(choice) <= KEY_WORDS_MAX or "#" not in words
    ]


def _words(routing_key: str) -> list[str]:
    return routing_key.split(".") if routing_key else []


def _topic(vhost: str, exchange: str, words: list[str]) -> str:
    topic = ".".join([f"kombu:{_vhost_prefix(vhost)}{_escaped(exchange, _WORD_PLAIN)}", *words])
    if len(topic) > _TOPIC_BYTES_MAX:
        raise InvalidArgument(
            f"exchange {exchange!r} and routing key need {len(topic)} bytes as a topic; use at most {_TOPIC_BYTES_MAX}"
        )
    return topic
