"""The options of a client, and what its calls accept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, TypedDict

from mqcore import credentials, errors
from mqcore.config import Duration, seconds

if TYPE_CHECKING:
    from mqcore._core import Broker as CoreBroker
    from mqcore.micromessage import Extension
    from mqcore.tls import TLSConfig

__all__ = [
    "DEFAULT_URL",
    "PREFETCH",
    "Clear",
    "ClientOptions",
    "ConnectOptions",
    "ConsumeOptions",
    "Copies",
    "EmbeddedBroker",
    "Headers",
    "Order",
    "Subscription",
    "target_and_options",
    "without_credentials",
]

DEFAULT_URL: Final = "tmqp://127.0.0.1:2622"
"""The URL of a broker when a program names none."""

PREFETCH: Final = 100
"""Messages that one consumer may hold unsettled, unless it sets another number."""

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""Header keys and values. As pairs, a key may repeat."""
Copies: TypeAlias = str | Iterable[str | tuple[str, str | None]]
"""Further queues that get a copy: one address, or several addresses and pairs of address and message id."""
Order: TypeAlias = Literal["fifo", "lifo"]
"""The order in which a pull takes messages: the oldest or the newest first."""
Clear: TypeAlias = Literal["all", "high-priority", "normal"]
"""The messages that a pull removes from the queue afterwards."""
Subscription: TypeAlias = tuple[str, str | None, int | None]
"""An event's name, and its channel and queue if it belongs to one."""


class EmbeddedBroker(Protocol):
    """A `mqcore.Broker` of this process, which a client reaches without a socket."""

    @property
    def _core(self) -> CoreBroker: ...


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of `connect`: the fields of `ClientOptions`."""

    id: str | None
    name: str | None
    kind: str | None
    token: str | None
    user: str | None
    password: str | None
    properties: Mapping[str, str]
    tls: TLSConfig | None
    connect_timeout: Duration
    patience: Duration
    request_timeout: Duration
    drain_timeout: Duration
    ping_interval: Duration
    pong_timeout: Duration
    backoff_first: Duration
    backoff_max: Duration
    reconnect_attempts: int | None
    max_outstanding: int
    write_buffer_bytes: int
    read_buffer_bytes: int
    frame_bytes_max: int
    extensions: Sequence[Extension] | None
    id_generator: Callable[[], str] | None


TOPIC_PREFIXES: Final = ("@topic:", "topic/")
"""Prefixes of targets that are topics: in TMQP and in MicroMessage2."""


class PublishOptions(TypedDict, total=False):
    """Keyword arguments of `Client.publish`, which documents them."""

    id: str | None
    headers: Headers
    high_priority: bool
    confirm: bool
    cc: Copies
    timeout: Duration | None
    retry: bool
    delay: Duration | None
    expires_in: Duration | None
    priority: int | None


class SendOptions(TypedDict, total=False):
    """Keyword arguments of `Client.send`, which documents them."""

    content_type: int
    id: str | None
    headers: Headers
    high_priority: bool
    one: bool
    confirm: bool
    timeout: Duration | None


class ConsumeOptions(TypedDict, total=False):
    """Keyword arguments of `Queue.consume` for single protocols; it documents them."""

    events: str | Iterable[str]
    add_events: str | Iterable[str]
    delete_when_unused: bool | Duration
    filter: str
    manual_ack: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Client identity, timeouts and buffer limits.

    Durations are seconds, `datetime.timedelta` or text such as ``"30s"``. Raises `ConfigError` for another value, for
    a user without a password, and for a token beside a user.
    """

    id: str | None = None
    """The requested client id. By default the broker assigns one, another on every connection."""
    name: str | None = None
    """A name that several clients may share; messages to ``@name:NAME`` reach them."""
    kind: str | None = None
    """The type of the program; messages to ``@type:KIND`` reach it."""
    token: str | None = dataclasses.field(default=None, repr=False)
    """Access token sent when connecting: one of the broker's, or one that its authenticator accepts."""
    user: str | None = None
    """A user of the broker, instead of a token."""
    password: str | None = dataclasses.field(default=None, repr=False)
    """The password of `user`."""
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Further properties sent in the handshake."""
    tls: TLSConfig | None = None
    """Trust and certificate for ``tmqps://``, unless the URL names them. Default: the system's authorities."""
    connect_timeout: Duration = 5.0
    """Longest time of one attempt to connect. Default 5 s."""
    patience: Duration = 0.0
    """How long the first connect keeps trying; 0: it tries every address once. Default 0."""
    request_timeout: Duration = 15.0
    """Longest wait for a confirmation or an answer, unless the call sets another. Default 15 s."""
    drain_timeout: Duration = 5.0
    """Time to finish in-flight work when the client closes. Default 5 s."""
    ping_interval: Duration = 30.0
    """Silence of the broker after which the client sends a ping. Default 30 s."""
    pong_timeout: Duration = 10.0
    """Longest wait for anything after a ping. Then the client drops the connection and reconnects. Default 10 s."""
    backoff_first: Duration = 0.1
    """Delay before the first attempt to reconnect. It doubles each time, and is shortened at random by up to half.
    Default 100 ms."""
    backoff_max: Duration = 15.0
    """Longest delay between two attempts. Default 15 s."""
    reconnect_attempts: int | None = None
    """Failed attempts in a row after which the client closes. Default: it never gives up."""
    max_outstanding: int = 65_536
    """Publishes and requests that may wait for an answer. Further calls wait. Default 65,536."""
    write_buffer_bytes: int = 4 * 1024 * 1024
    """Bytes waiting to be written above which publishing waits. Default 4 MiB."""
    read_buffer_bytes: int = 64 * 1024 * 1024
    """Bytes of received messages not yet taken above which the client stops reading. Default 64 MiB."""
    frame_bytes_max: int = 64 * 1024 * 1024
    """Largest frame in bytes, sent or received; in MQKS a line, in MicroMessage2 also a whole message.
    Default 64 MiB."""
    extensions: Sequence[Extension] | None = None
    """Offered extensions of MicroMessage2. Default: `mqcore.micromessage.DEFAULTS`."""
    id_generator: Callable[[], str] | None = None
    """Called for the id of each published or sent message that is given none. It must return another id each time, of 1
    to 255 bytes. Not called for requests, and for `publish_many` with copies. Default: 32 hexadecimal digits."""

    def __post_init__(self) -> None:
        for name in (
            "connect_timeout",
            "patience",
            "request_timeout",
            "drain_timeout",
            "ping_interval",
            "pong_timeout",
            "backoff_first",
            "backoff_max",
        ):
            object.__setattr__(self, name, seconds(getattr(self, name)))
        object.__setattr__(self, "properties", list(dict(self.properties).items()))
        object.__setattr__(self, "token", credentials.of(self.token, self.user, self.password))


def without_credentials(urls: Sequence[str], options: ClientOptions) -> tuple[list[str], ClientOptions]:
    """Move ``user:password@`` or ``token@`` from URLs to the options.

    Raises `ConfigError` if the URLs disagree, or if the options name a token or user too.
    """
    found: set[str] = set()
    plain = []
    for url in urls:
        address, said = credentials.split(url)
        plain.append(address)
        if said is not None:
            found.add(said)
    if not found:
        return plain, options
    if len(found) > 1 or options.token is not None:
        raise errors.ConfigError(
            "credentials differ or are given twice; use the same in every URL, or pass token, or user and password"
        )
    return plain, dataclasses.replace(options, token=found.pop())


def target_and_options(
    urls: str | Sequence[str] | EmbeddedBroker, options: ClientOptions
) -> tuple[list[str] | CoreBroker, ClientOptions]:
    """Return what the core connects to, a list of URLs or an embedded broker, and with which options."""
    if isinstance(urls, str):
        return without_credentials([urls], options)
    if isinstance(urls, Sequence):
        return without_credentials(urls, options)
    return urls._core, options
