"""What a broker, its channels and its queues can be told, and where it may be written down.

Durations are seconds as a number, a :class:`datetime.timedelta`, or text with a unit: ``"250ms"``, ``"30s"``,
``"5m"``, ``"1h"``, ``"1d"``. Options that are ``None`` are inherited: a queue's from its channel, a channel's
from the broker.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import json
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, Union

from mqcore.errors import ConfigError
from mqcore.tls import Listener, ListenerTLS

if TYPE_CHECKING:
    from mqcore._core import NodeFrame
else:
    # Annotations are read when options are made, and the extension module is not loaded for that.
    NodeFrame = Any

__all__ = [
    "AuthorityOptions",
    "Binding",
    "BrokerConfig",
    "ChannelOptions",
    "Durability",
    "Duration",
    "Interaction",
    "MasterConfig",
    "NodeConfig",
    "NodeFilter",
    "NodeRule",
    "QueueOptions",
    "QueueStatus",
    "RouteMethod",
    "RouterOptions",
    "TokenOptions",
    "UserOptions",
    "seconds",
]

Duration: TypeAlias = float | timedelta | str
"""Seconds, a timedelta, or text such as ``"30s"``."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")


def seconds(duration: Duration) -> float:
    """Return `duration` as seconds.

    Raises `ConfigError` for text that is no duration, and for what is negative or not finite.
    """
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        match = _DURATION.fullmatch(duration)
        if match is None:
            raise ConfigError(f"{duration!r} is no duration; write for example '250ms', '30s', '5m', '1h' or '1d'")
        value = float(match[1]) * _UNITS[match[2] or "s"]
    else:
        try:
            value = float(duration)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{duration!r} is no duration; give seconds, a timedelta, or text such as '30s'"
            ) from None
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"a duration cannot be {duration!r}: it is finite and not negative")
    return value


class QueueStatus(StrEnum):
    """How a queue hands its messages out."""

    BROADCAST = "broadcast"
    """To all consumers that are there now; nothing is stored."""
    PUSH = "push"
    """To all consumers; stored until there is at least one."""
    ROUND_ROBIN = "roundrobin"
    """To one consumer after the other; stored until there is one."""
    PULL = "pull"
    """To whoever asks."""
    CACHE = "cache"
    """The latest message, to whoever asks; it stays."""
    PAUSED = "paused"
    """Stored, handed to nobody."""
    STOPPED = "stopped"
    """Refused; entering this status erases the queue."""

    @classmethod
    def _missing_(cls, value: object) -> QueueStatus | None:
        """Take the other spellings in use: ``round-robin``, ``pause``, ``stop``, in any case."""
        if not isinstance(value, str):
            return None
        word = value.lower().replace("-", "").replace("_", "").replace(" ", "")
        word = {"round": "roundrobin", "pause": "paused", "stop": "stopped"}.get(word, word)
        return cls._value2member_map_.get(word)  # type: ignore[return-value]


class Durability(StrEnum):
    """When a saved message counts as saved."""

    NONE = "none"
    """At once; it is written behind. A crash may lose the latest."""
    OS = "os"
    """When the operating system has it: survives the end of the process, not of the machine."""
    FSYNC = "fsync"
    """When the disk has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options of a queue, for creating or changing one. ``None`` inherits the option, or leaves it unchanged.

    >>> options = mqcore.QueueOptions(status="round-robin", request_acknowledge=True, acknowledge_timeout="30s")
    >>> options.status, options.acknowledge_timeout
    (<QueueStatus.ROUND_ROBIN: 'round-robin'>, 30.0)
    """

    status: QueueStatus | None = None
    """How it hands out. Default push."""
    only_first_acquirer: bool | None = None
    """Only the first consumer that may receive gets each message. Default no."""
    request_acknowledge: bool | None = None
    """Consumers must acknowledge. Default no."""
    acknowledge_timeout: Duration | None = None
    """How long a consumer may take to acknowledge. Default 15 s."""
    message_timeout: Duration | None = None
    """How long a message may wait in the queue; 0: for ever. Default 0."""
    use_message_id: bool | None = None
    """Messages without an id get one. Default yes."""
    wait_for_acknowledge: bool | None = None
    """The next message waits until the one before it is acknowledged or timed out. Default no."""
    hide_client_names: bool | None = None
    """Consumers do not learn who produced a message. Default no."""
    message_limit: int | None = None
    """Messages stored at most; 0: no limit. Default 0."""
    message_size_limit: int | None = None
    """Octets of a body at most; 0: no limit but the listener's. Default 0."""
    put_back_limit: int | None = None
    """How often one message may be put back before it is dead-lettered or dropped. Default 16."""
    dead_letter: str | None = None
    """The queue (``orders/9001``) for messages that were put back too often or timed out."""
    delivery_handler: str | None = None
    """The key of a delivery handler, or a ready-made policy. Default the channel's, then the broker's."""
    tag: str | None = None
    """A word for people and for routers."""
    durability: Durability | None = None
    """When a message that a decision saves counts as saved. Default fsync."""
    publish_limit: str | None = None
    """How much everybody together may publish to it, ``"100/s"`` or ``"6000/1m"``; more is refused with the time after
    which to try again. ``"none"`` removes what would be inherited. Default no limit."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions:
    """Options of a channel, for creating one. What is ``None`` is inherited."""

    queue: QueueOptions = field(default_factory=QueueOptions)
    """What its queues start with."""
    allow_multiple_queues: bool | None = None
    """May it have more than one queue? Default yes."""
    allowed_queues: tuple[int, ...] | None = None
    """Which queue ids it may have. Default all."""
    client_limit: int | None = None
    """Clients joined at most; 0: no limit. Default 0."""
    queue_limit: int | None = None
    """Queues at most; 0: no limit. Default 0."""
    destroy_when_empty: bool | None = None
    """The channel goes when its last client leaves and all its queues are empty. Default no."""

    def __post_init__(self) -> None:
        _check(self)


class RouteMethod(StrEnum):
    """Which bindings of a router, or which clients of a binding, get a message."""

    DISTRIBUTE = "distribute"
    """All of them."""
    ROUND_ROBIN = "round-robin"
    """One after the other; one that does not take it is passed over."""
    ONLY_FIRST = "only-first"
    """The one of the highest priority; the next one if it does not take it."""

    @classmethod
    def _missing_(cls, value: object) -> RouteMethod | None:
        """Take the other spellings in use: ``OnlyFirst``, ``round_robin``."""
        return _same_word(cls, value)


class Interaction(StrEnum):
    """What a binding's receiver is asked for, and so who answers the producer."""

    NONE = "none"
    """Nothing: the receiver's copy has an id of its own, and the router answers."""
    ACKNOWLEDGE = "acknowledge"
    """An acknowledgement, which the producer gets."""
    RESPONSE = "response"
    """A response, which the producer gets."""

    @classmethod
    def _missing_(cls, value: object) -> Interaction | None:
        return _same_word(cls, value)


_Word = TypeVar("_Word", bound=StrEnum)


def _same_word(cls: type[_Word], value: object) -> _Word | None:
    if not isinstance(value, str):
        return None
    word = re.sub("[-_ ]", "", value).lower()
    return next((member for member in cls if member.replace("-", "") == word), None)


@dataclass(frozen=True, slots=True)
class Binding:
    """One rule of a router: where a message may go.

    Raises `ConfigError` for values that cannot be; the target is judged when a broker gets to know it.
    """

    target: str
    """A queue (``orders/1001``), a topic (``@topic:orders.new``), clients (``@client:ID``, ``@name:NAME``,
    ``@type:TYPE``), or a binding written in Python (``@handler:KEY``)."""
    name: str | None = None
    """Unique within its router. Default the target."""
    priority: int = field(default=0, kw_only=True)
    """Higher is sooner; may be negative. Default 0."""
    interaction: Interaction = field(default=Interaction.NONE, kw_only=True)
    """What the receiver is asked for. Default nothing."""
    content_type: int | None = field(default=None, kw_only=True)
    """What the message's content type becomes, up to 65535, unless it goes to a queue. Default it stays."""
    method: RouteMethod = field(default=RouteMethod.DISTRIBUTE, kw_only=True)
    """Which of the clients of a name or a type get the message. Default all."""

    def __post_init__(self) -> None:
        for name, convert, wanted in (
            ("target", _text, "text"),
            ("name", lambda value: None if value is None else _text(value), "text"),
            ("priority", int, "a whole number"),
            ("interaction", Interaction, "one of " + ", ".join(Interaction)),
            ("content_type", lambda value: None if value is None else _count(value), "a number up to 65535"),
            ("method", RouteMethod, "one of " + ", ".join(RouteMethod)),
        ):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, convert(value))
            except (TypeError, ValueError):
                raise ConfigError(f"{name} of a binding cannot be {value!r}; it is {wanted}") from None


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """A router with its bindings, as a program or a configuration file declares it."""

    name: str
    """Its name, under the rules of channels' names; compared with respect to case."""
    method: RouteMethod = RouteMethod.DISTRIBUTE
    """Which bindings get a message. Default all."""
    bindings: tuple[Binding, ...] = ()
    """Where messages may go. Default nowhere."""
    enabled: bool = field(default=True, kw_only=True)
    """A router that is not enabled takes nothing. Default yes."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptions:
    """A user that the configuration names. Those of ``mqcore user add`` are kept elsewhere and need not be here."""

    name: str
    """Unique among users."""
    allow: tuple[str, ...] = ()
    """Rules: ``push,pull:orders/*``, ``*``. Default nothing."""
    password_hash: str | None = field(default=None, repr=False)
    """What ``mqcore user hash`` prints. Default none: no password is the right one."""
    certificate: str | None = None
    """A name in a client certificate that is as good as the password: ``cn:worker-1``. Default none."""
    client_ids: tuple[str, ...] = ()
    """Patterns of client ids that the peer may take. Default all."""
    client_names: tuple[str, ...] = ()
    """Patterns of client names. Default all."""
    client_types: tuple[str, ...] = ()
    """Patterns of client types. Default all."""
    addresses: tuple[str, ...] = ()
    """Where it may come from: ``10.0.0.0/8``. Default everywhere."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """A rule about what is passed on. All that it names must hold; in texts, ``*`` stands for any characters."""

    kinds: tuple[str, ...] = ()
    """Of ``queue``, ``router``, ``direct``, ``acknowledge``, ``response``; empty: any."""
    channel: str | None = None
    """The channel of a queue message, or of its acknowledgement."""
    queue: int | None = None
    """The id of its queue."""
    router: str | None = None
    """The router of a router message."""
    client_id: str | None = None
    """The id of the client that produced it."""
    client_name: str | None = None
    """Its name; a master does not learn it."""
    client_type: str | None = None
    """Its type; a master does not learn it."""
    node: str | None = None
    """The name of the node that passes it on; only its master looks at that."""
    header: str | None = None
    """A header that it has,"""
    value: str = "*"
    """and what the header says."""

    def __post_init__(self) -> None:
        _check(self)
        kinds = {"queue", "router", "direct", "acknowledge", "response"}
        if unknown := set(self.kinds) - kinds:
            raise ConfigError(f"kinds: there is no {', '.join(sorted(unknown))}; there are: {', '.join(sorted(kinds))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFilter:
    """What is passed on to a master, or taken from a node. Without rules and `decide`, everything."""

    allow: tuple[NodeRule, ...] = ()
    """If there are any, one of them must match."""
    deny: tuple[NodeRule, ...] = ()
    """None of them may match."""
    decide: Callable[[NodeFrame], bool] | None = None
    """A function that has the last word: true lets through what the rules have let through. Called in batches on a
    thread of its own, so it may take its time, but not be ``async``; whoever produced (or, on a master, passes on)
    waits for it, and nobody else. Only a program can give one, no file. Default none."""
    timeout: Duration = 1.0
    """How long `decide` may take over what a client or a node sent at once. Default 1 s."""
    fallback: bool = False
    """What holds for what `decide` was late for, raised about, or answered with no bool: true lets it through. Counted
    in ``mqcore_node_filter_fallbacks_total``. Default no."""

    def __post_init__(self) -> None:
        _check(self)
        if inspect.iscoroutinefunction(self.decide):
            raise ConfigError("decide: a filter of nodes is a plain function, not an async one")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """A token that the configuration names, without its secret."""

    id: str
    """The part of the token between the first two underscores."""
    name: str
    """For people."""
    hash: str = field(repr=False)
    """SHA-256 of the part behind the second underscore, hexadecimal."""
    allow: tuple[str, ...] = ()
    """Rules: ``push,pull:orders/*``, ``*``. Default nothing."""
    expires_ms: int | None = None
    """From when on it is worth nothing, Unix milliseconds. Default never."""
    client_ids: tuple[str, ...] = ()
    """Patterns of client ids that the peer may take. Default all."""
    client_names: tuple[str, ...] = ()
    """Patterns of client names. Default all."""
    client_types: tuple[str, ...] = ()
    """Patterns of client types. Default all."""
    addresses: tuple[str, ...] = ()
    """Where it may come from: ``10.0.0.0/8``. Default everywhere."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterConfig:
    """A broker to which this one passes on what its clients produce."""

    url: str
    """``tmqp://host:port``, or ``tmqps://`` with ``?ca=FILE&cert=FILE&key=FILE&server_name=NAME``."""
    token: str | None = None
    """What this broker says there. Default nothing."""
    send: NodeFilter = field(default_factory=NodeFilter)
    """What is passed on. Default everything."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityOptions:
    """Who may do what, beside users and tokens."""

    anonymous: tuple[str, ...] = ()
    """Rules for peers that show nothing, once there is a user or a token. Default none: they are turned away."""
    store: str | None = None
    """The file of users and tokens that the command line changes. Default ``authority.json`` in the data directory."""
    audit: str | None = None
    """Where audit lines go: a file, ``stderr`` or ``off``. Default ``audit.jsonl`` in the data directory, without one
    standard error."""
    audit_allowed: bool = False
    """Whether what was allowed is written too, where it had to be looked up. Default no."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What a broker is among others: a master of those that dial it, a slave of its own masters, or both."""

    name: str = ""
    """Its name, unique among the nodes that know each other. Default its id."""
    accepts: bool = True
    """Whether other brokers may pass on to this one. Default yes."""
    token: str | None = None
    """What they have to say then. Default nothing; where clients log in, nodes without a token are refused."""
    accept: NodeFilter = field(default_factory=NodeFilter)
    """What of theirs is taken. Default everything."""
    masters: tuple[MasterConfig, ...] = ()
    """Where this broker passes on, at most 32: configurations, or URLs. Default nowhere."""
    keep_messages: bool = False
    """Whether messages are kept in the data directory for a master that is away. Default no."""
    keep_bytes_max: int = 1 << 30
    """Octets that are kept at most; the oldest are dropped beyond it, and counted. Default 1 GiB."""
    keep_age_max: Duration | None = None
    """How long a message is kept. Default until it is sent."""
    buffer_bytes_max: int = 64 << 20
    """Octets on their way without `keep_messages`; beyond it, producers wait. Default 64 MiB."""
    reconnect_wait: Duration = 0.5
    """The shortest pause before a master is dialled again; it doubles up to 30 s. Default 500 ms."""
    confirm_timeout: Duration = 30.0
    """How long a connected master may go without confirming anything before it counts as away. Default 30 s."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Everything that a broker can be told."""

    listen: tuple[str, ...] = ()
    """URLs where clients connect, ``tmqp://127.0.0.1:2622``; port 0 picks a free one. Default nowhere."""
    admin: str | None = None
    """URL of the admin side, ``http://127.0.0.1:2627`` or ``https://``. Default nowhere."""
    listener: tuple[Listener, ...] = ()
    """Further listeners, each with TLS of its own: ``[[listener]]`` in a file. Default none."""
    tls: ListenerTLS | None = None
    """What listeners with TLS show that name no files themselves. Default nothing, and such a listener is an error."""
    tls_handshakes_max: int = 1024
    """TLS handshakes under way at most; beyond that the oldest gives way. Default 1,024."""
    tls_expiry_warning: Duration = timedelta(days=30)
    """How long before its end a certificate is called about to expire in the log. Default 30 days."""
    data_dir: str | None = None
    """The directory for definitions and saved messages, made if it is missing. Default none: everything stays in
    memory, and queues whose policy saves refuse messages."""
    history: bool = False
    """Whether every step of every message's life is written down, in the data directory. Default no."""
    history_bodies: bool = True
    """Whether the history keeps the bodies of messages too, and not only their sizes. Default yes."""
    node: NodeConfig | None = None
    """What the broker is among others. Default nothing: it stands alone."""
    history_max_age: Duration = 0.0
    """How long the journal keeps history that is not archived; 0: for ever. Default 0."""
    history_max_bytes: int = 2 * 1024 * 1024 * 1024
    """Octets of history that the journal keeps at most; the oldest goes first. Default 2 GiB."""
    archive: bool = True
    """Whether history is carried over to Parquet files, in the directory ``archive`` of the data directory. Default
    yes."""
    archive_interval: Duration = 300.0
    """How old history may become before it is archived even if there is little of it. Default 5 minutes."""
    archive_max_age: Duration = 0.0
    """How long the archive keeps a file, counted from the latest row in it; 0: for ever. Default 0."""
    archive_max_bytes: int = 0
    """Octets of the archive at most; the oldest files go first; 0: no limit. Default 0."""
    allow_remote: bool = False
    """Whether addresses other than loopback may be bound although nobody has to log in. Default no. Without meaning
    once there is a user, a token or an authenticator."""
    shards: int = 0
    """Parts that work side by side, at most 16; 0: one for each core. Default 0."""
    channel: ChannelOptions = field(default_factory=ChannelOptions)
    """What channels, and through them queues, start with."""
    auto_create_channels: bool = False
    """Publishing to, or joining, a missing channel creates it. Default no."""
    auto_create_queues: bool = False
    """Publishing to a missing queue creates it. Default no."""
    client_limit: int = 0
    """Clients at most; 0: no limit but `connections_max`. Default 0."""
    channel_limit: int = 0
    """Channels of one shard at most; 0: no limit. Default 0."""
    delivery_handler: str = "memory"
    """The handler or policy of queues whose channel names none. Default ``memory``."""
    frame_bytes_max: int = 64 * 1024 * 1024
    """Octets of a frame at most. Default 64 MiB."""
    header_bytes_max: int = 65_535
    """Octets of a frame's header text at most. Default 65,535."""
    connections_max: int = 65_536
    """Connections at most, of all listeners together. Default 65,536."""
    half_open_max: int = 16_384
    """Connections at most whose peers have not said who they are. Default 16,384."""
    output_bytes_max: int = 8 * 1024 * 1024
    """Octets at most that wait for one connection to take them. Default 8 MiB."""
    slow_consumer_timeout: Duration = 30.0
    """How long a consumer may be unable to take more before it is disconnected. Default 30 s."""
    handshake_timeout: Duration = 10.0
    """How long a peer may take for the TLS handshake, if there is one, and again to say who it is. Default 10 s."""
    ping_interval: Duration = 60.0
    """A peer from which nothing came for this long is pinged. Default 60 s."""
    pong_timeout: Duration = 10.0
    """How long after a ping something has to come. Default 10 s."""
    undecided_max: int = 100_000
    """Messages of one queue at most that wait for a handler's decision. Default 100,000."""
    publish_limit: str | None = None
    """How often one client may publish, ``"1000/s"`` or ``"6000/1m"``; more is refused with the time after which to try
    again. Default no limit."""
    connect_limit: str | None = None
    """How often one address may connect and say who it is, written likewise. Default no limit."""
    limiter_keys_max: int = 1 << 24
    """Counters and buffers of the limiter at most; one more takes the place of the one that expires soonest.
    Default 16,777,216."""
    limiter_bytes_max: int = 2 << 30
    """Octets at most that they take: 120 each, keys beyond 16 octets and values of buffers besides. Default 2 GiB."""
    limiter_persist_interval: Duration = 0.1
    """How long a change of what Throttr listeners with ``?persist=on`` keep may wait before it is written to the data
    directory: a crash loses no more than that. Default 100 ms."""
    routers: tuple[RouterOptions, ...] = ()
    """Routers that are there from the start, as they are written here whatever clients made of them before. In a file,
    ``[[router]]`` and ``[[router.binding]]``. Default none."""
    memory_watermark: int = 256 * 1024 * 1024
    """Octets of saved messages that may wait in memory. Above it, bodies that are far from being handed out leave it
    and are read back from the data directory before they are needed. Default 256 MiB."""

    authority: AuthorityOptions = field(default_factory=AuthorityOptions)
    """Who may do what, beside users and tokens."""
    user: tuple[UserOptions, ...] = ()
    """Users, each a table ``[[user]]``. Default none."""
    token: tuple[TokenOptions, ...] = ()
    """Tokens, each a table ``[[token]]``. Default none."""

    def __post_init__(self) -> None:
        _check(self)

    def _authority(self) -> str:
        """Return what the core wants to know about users and tokens, as JSON."""
        return json.dumps(
            {
                "users": [
                    {
                        "name": user.name,
                        "password": user.password_hash,
                        "certificate": user.certificate,
                        "allow": user.allow,
                        "restrict": _restrictions(user),
                    }
                    for user in self.user
                ],
                "tokens": [
                    {
                        "id": token.id,
                        "name": token.name,
                        "hash": token.hash,
                        "allow": token.allow,
                        "expires_ms": token.expires_ms,
                        "restrict": _restrictions(token),
                    }
                    for token in self.token
                ],
                **dataclasses.asdict(self.authority),
            }
        )

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **flags: Any,
    ) -> Self:
        """Read the configuration: `flags`, then ``MQCORE_*`` of `environ`, then `file` (TOML), then defaults.

        Keys are the fields' names; tables and double underscores lead to the inner options:
        ``[channel.queue]`` with ``status = "push"``, or ``MQCORE_CHANNEL__QUEUE__STATUS=push``. Flags that
        are ``None`` were not given. `environ` is ``os.environ`` unless said otherwise. Raises `ConfigError`
        for unknown keys and wrong values.
        """
        settings: dict[str, Any] = {}
        if file is not None:
            _merge(settings, _from_file(Path(file)))
        _merge(settings, _from_environ(os.environ if environ is None else environ))
        _merge(settings, {name: value for name, value in flags.items() if value is not None})
        masters = settings.pop("master", None)
        if masters is not None:
            # A table of its own, as `[[master]]` reads better than `[[node.masters]]`.
            _merge(settings, {"node": {"masters": masters}})
        loaded: Self = _build(cls, settings, "")
        return loaded


def _restrictions(options: UserOptions | TokenOptions) -> dict[str, tuple[str, ...]]:
    return {
        "client_ids": options.client_ids,
        "client_names": options.client_names,
        "client_types": options.client_types,
        "addresses": options.addresses,
    }


# Variables with the prefix that are not settings of a broker but of the command line.
_COMMAND_LINE: Final = frozenset(
    {
        "APP",
        "CONFIG",
        "CONTEXT",
        "DEBUG",
        "DRAIN_TIMEOUT",
        "LOG_FORMAT",
        "LOG_LEVEL",
        "PASSWORD",
        "TIMEOUT",
        "TOKEN",
        "URL",
        "USER",
    }
)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for variable, value in environ.items():
        name = variable.removeprefix("MQCORE_")
        if name == variable or name in _COMMAND_LINE:
            continue
        *tables, key = name.lower().split("__")
        place = settings
        for table in tables:
            place = place.setdefault(table, {})
        place[key] = value
    return settings


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        inner = below.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            _merge(inner, value)
        else:
            below[key] = dict(value) if isinstance(value, Mapping) else value


# Each table of a list is one of its things.
_TABLES: Final = {"router": "routers", "binding": "bindings"}


def _build(cls: type[Any], settings: Mapping[str, Any], path: str) -> Any:
    fields = {entry.name: entry for entry in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    arguments = {}
    for written, value in settings.items():
        key = _TABLES.get(written, written)
        if key not in fields:
            known = ", ".join(sorted(fields))
            raise ConfigError(f"there is no setting {path + written!r}; there are: {known}")
        arguments[key] = _nested(hints[key], value, f"{path}{key}.")
    missing = [entry.name for entry in fields.values() if _is_required(entry) and entry.name not in arguments]
    if missing:
        raise ConfigError(f"the setting {path + missing[0]!r} is missing")
    return cls(**arguments)


def _is_required(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING


def _nested(hint: Any, value: Any, path: str) -> Any:
    """Make a table what its field's type says; what is no table stays as it is."""
    choices = typing.get_args(hint) or (hint,)
    inner = next((choice for choice in choices if dataclasses.is_dataclass(choice)), None)
    if inner is None:
        return value
    if isinstance(value, Mapping):
        return _build(typing.cast("type[Any]", inner), value, path)
    if isinstance(value, list):
        return [_nested(inner, entry, path) for entry in value]
    return value


def _check(options: Any) -> None:
    """Make every field of a frozen dataclass what its type says, or raise `ConfigError`."""
    for name, convert in _converters(type(options)).items():
        value = getattr(options, name)
        if value is None and convert.optional:
            continue
        try:
            object.__setattr__(options, name, convert.function(value))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        except (TypeError, ValueError):
            raise ConfigError(f"{name} cannot be {value!r}; it is {convert.wanted}") from None


@dataclass(frozen=True, slots=True)
class _Converter:
    function: Callable[[Any], Any]
    wanted: str
    optional: bool


_CONVERTERS: Final[dict[type[Any], dict[str, _Converter]]] = {}


def _converters(cls: type[Any]) -> dict[str, _Converter]:
    known = _CONVERTERS.get(cls)
    if known is None:
        hints = typing.get_type_hints(cls)
        known = {entry.name: _converter(hints[entry.name]) for entry in dataclasses.fields(cls)}
        _CONVERTERS[cls] = known
    return known


def _converter(hint: Any) -> _Converter:
    choices = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    optional = types.NoneType in choices
    kinds = [kind for kind in choices if kind is not types.NoneType]
    if timedelta in kinds:
        return _Converter(seconds, "seconds, a timedelta, or text such as '30s'", optional)
    (kind,) = kinds
    if kind is bool:
        return _Converter(_flag, "true or false", optional)
    if kind is int:
        return _Converter(_count, "a whole number, not negative", optional)
    if kind is str:
        return _Converter(_text, "text", optional)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _Converter(kind, "one of " + ", ".join(kind), optional)
    if kind == tuple[str, ...]:
        return _Converter(lambda value: tuple(map(_text, _several(value))), "a list of texts", optional)
    if kind == tuple[int, ...]:
        return _Converter(lambda value: tuple(map(_count, _several(value))), "a list of numbers", optional)
    if typing.get_origin(kind) is collections.abc.Callable:
        return _Converter(_function, "a function, which only a program can give", optional)
    if typing.get_origin(kind) is tuple:
        part = typing.get_args(kind)[0]
        return _Converter(lambda value: _all_built(value, part), f"a list of {part.__name__}s", optional)
    return _Converter(lambda value: _model(value, kind), f"a {kind.__name__}", optional)


def _all_built(values: Any, kind: type[Any]) -> tuple[Any, ...]:
    """Take instances as they are, and make those of tables that a file has in their place."""
    if isinstance(values, str):
        raise TypeError
    return tuple(_model(value, kind) for value in values)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.lower()
        if word in {"true", "yes", "on", "1"}:
            return True
        if word in {"false", "no", "off", "0"}:
            return False
    raise ValueError


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    number = int(value.replace("_", "")) if isinstance(value, str) else value
    if number < 0:
        raise ValueError
    return number


def _function(value: object) -> object:
    if not callable(value):
        raise TypeError
    return value


def _text(value: object) -> str:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if not isinstance(value, str):
        raise TypeError
    return value


def _several(value: Any) -> list[Any]:
    """Split text at commas, as in an environment variable; a list stays a list."""
    if isinstance(value, str):
        return [part for part in (part.strip() for part in value.split(",")) if part]
    return list(value)


def _model(value: object, kind: type[Any]) -> object:
    if isinstance(value, Mapping):
        return _build(kind, value, "")
    if kind is MasterConfig and isinstance(value, str):
        return MasterConfig(url=value)
    if not isinstance(value, kind):
        raise TypeError
    return value
