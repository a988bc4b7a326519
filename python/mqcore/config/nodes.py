"""A broker among others: upstream brokers, and filters of what is passed on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from mqcore.config.convert import check
from mqcore.config.duration import Duration
from mqcore.errors import ConfigError

if TYPE_CHECKING:
    from mqcore._core import NodeFrame
else:
    # Annotations are read when options are made, and the extension module is not loaded for that.
    NodeFrame = Any

__all__ = ["NodeConfig", "NodeFilter", "NodeRule", "UpstreamConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """A rule about forwarded frames. Every given field must match; ``*`` stands for any characters."""

    kinds: tuple[str, ...] = ()
    """Kinds: ``queue``, ``router``, ``direct``, ``acknowledge``, ``response``; empty: any."""
    channel: str | None = None
    """The channel of a queue message, or of its acknowledgement."""
    queue: int | None = None
    """The id of its queue."""
    router: str | None = None
    """The router of a router message."""
    client_id: str | None = None
    """The id of the client that produced it."""
    client_name: str | None = None
    """The name of that client. An upstream broker does not know it."""
    client_type: str | None = None
    """The type of that client. An upstream broker does not know it."""
    node: str | None = None
    """The name of the forwarding node. Only its upstream broker checks it."""
    header: str | None = None
    """A header that the message has."""
    value: str = "*"
    """The value of `header`."""

    def __post_init__(self) -> None:
        check(self)
        kinds = {"queue", "router", "direct", "acknowledge", "response"}
        if unknown := set(self.kinds) - kinds:
            raise ConfigError(f"kinds: there is no {', '.join(sorted(unknown))}; there are: {', '.join(sorted(kinds))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFilter:
    """A filter of frames sent to an upstream broker, or accepted from a downstream one. By default all frames pass."""

    allow: tuple[NodeRule, ...] = ()
    """If there are any, at least one of them must match."""
    deny: tuple[NodeRule, ...] = ()
    """None of them may match."""
    decide: Callable[[NodeFrame], bool] | None = None
    """A function that decides about frames that the rules let through: true passes the frame. It runs in batches on a
    thread of its own, so it may block, but not be ``async``. Only the producer (on an upstream broker, the forwarding
    node) waits for it. A configuration file cannot set it. Default none."""
    timeout: Duration = 1.0
    """Longest time of `decide` for one batch of frames. Default 1 s."""
    fallback: bool = False
    """Whether a frame passes if `decide` is late, raises, or does not return a bool. The metric
    ``mqcore_node_filter_fallbacks_total`` counts these frames. Default no."""

    def __post_init__(self) -> None:
        check(self)
        if inspect.iscoroutinefunction(self.decide):
            raise ConfigError("decide: a filter of nodes is a plain function, not an async one")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """An upstream broker, to which this one forwards what its clients produce."""

    url: str
    """``tmqp://host:port``, or ``tmqps://`` with ``?ca=FILE&cert=FILE&key=FILE&server_name=NAME``."""
    token: str | None = field(default=None, repr=False)
    """Token sent to the upstream broker. Default none."""
    send: NodeFilter = field(default_factory=NodeFilter)
    """Filter of forwarded frames. Default all."""

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def from_text(cls, url: str) -> Self:
        """Return the configuration of an upstream broker that has only a URL."""
        return cls(url=url)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Links to other brokers: to upstream brokers, from downstream brokers, or both."""

    name: str = ""
    """Its name, unique among linked nodes. Default its id."""
    accepts: bool = True
    """Whether other brokers may forward to this one. Default yes."""
    token: str | None = field(default=None, repr=False)
    """Token that they must send. Default none; if clients must log in, nodes without a token are rejected."""
    accept: NodeFilter = field(default_factory=NodeFilter)
    """Filter of frames from them. Default all."""
    upstreams: tuple[UpstreamConfig, ...] = ()
    """Upstream brokers, at most 32: configurations or URLs. Default none."""
    keep_messages: bool = False
    """Whether the data directory keeps messages for an unreachable upstream broker. Default no."""
    keep_bytes_max: int = 1 << 30
    """Maximum bytes of kept messages. Beyond it the oldest are dropped and counted. Default 1 GiB."""
    keep_age_max: Duration | None = None
    """Maximum age of a kept message. Default none: until it is sent."""
    buffer_bytes_max: int = 64 << 20
    """Maximum bytes in flight without `keep_messages`. Beyond it producers wait. Default 64 MiB."""
    reconnect_wait: Duration = 0.5
    """First delay before reconnecting to an upstream broker; it doubles up to 30 s. Default 500 ms."""
    confirm_timeout: Duration = 30.0
    """How long a connected upstream broker may confirm nothing before it counts as unreachable. Default 30 s."""

    def __post_init__(self) -> None:
        check(self)
