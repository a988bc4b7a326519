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

__all__ = ["MasterConfig", "NodeConfig", "NodeFilter", "NodeRule"]


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
        check(self)
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
        check(self)
        if inspect.iscoroutinefunction(self.decide):
            raise ConfigError("decide: a filter of nodes is a plain function, not an async one")


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
        check(self)

    @classmethod
    def from_text(cls, url: str) -> Self:
        """Return the configuration of a master that has only a URL."""
        return cls(url=url)


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
        check(self)
