"""Authentication and authorization decided in Python.

::

    class Staff(Authority):
        async def authenticate(self, hello: Hello) -> Identity | None:
            person = await directory.find(hello.token)
            return Identity(person.name, allow=("push:orders/*",)) if person else None

    broker.authority = Staff()

Users and tokens with rules do not need it; see docs/security.md. With both, `Hello.identity` is the identity that the
broker found.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mqcore._answering import LoopRunner
from mqcore._methods import check_arguments, check_names
from mqcore.config import Duration, seconds

if TYPE_CHECKING:
    from mqcore._core import AuthorityReply, ClientView

__all__ = ["Action", "Authority", "Certificate", "Hello", "Identity"]

_LOG: Final = logging.getLogger("mqcore.authority")


class Action(StrEnum):
    """An action of a client."""

    CREATE = "create"
    """Create a channel or a queue."""
    JOIN = "join"
    """Become a consumer of a channel."""
    PUSH = "push"
    """Publish to a queue."""
    PULL = "pull"
    """Pull messages from a queue."""
    RECEIVE = "receive"
    """Receive messages that the broker pushes from queues."""
    DIRECT = "direct"
    """Send a direct message or a response to another client."""
    ROUTE = "route"
    """Publish to a router."""
    EVENTS = "events"
    """Subscribe to events."""
    ADMINISTER = "administer"
    """Inspect other clients, and change or remove objects that others created."""
    PUBLISH = "publish"
    """Publish to a topic."""
    SUBSCRIBE = "subscribe"
    """Subscribe to a topic."""
    LIMIT = "limit"
    """Use, change or remove a limit."""
    INSPECT = "inspect"
    """Read pages of the admin side, apart from messages and backups. The right to administer includes it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated identity and its rights."""

    name: str
    """Name in the audit log and in metrics."""
    allow: str | Sequence[str] = ("*",)
    """Rules such as ``push,pull:orders/*``, or one rule (default: everything). Actions that no rule allows are denied
    without a call of `Authority.authorize`."""

    def __post_init__(self) -> None:
        if isinstance(self.allow, str):
            object.__setattr__(self, "allow", (self.allow,))


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client's TLS certificate, verified by the listener."""

    subject: str
    """Common name; empty if it has none."""
    names: tuple[str, ...]
    """Subject alternative names with their types: ``dns:worker.example``."""
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A connection that asks to be authenticated. Its `repr` contains no secrets."""

    protocol: str
    """Protocol of the connection, such as ``tmqp``; ``http`` for the admin API."""
    address: str | None
    """Address of the client, ``192.0.2.7:50312``; `None` without a network."""
    encrypted: bool
    """Whether the connection is encrypted."""
    certificate: Certificate | None
    """TLS certificate of the client, if the listener requests one and the client has one."""
    id: str | None
    """Requested client id."""
    name: str | None
    """Client name."""
    kind: str | None
    """Client type."""
    token: str | None = field(repr=False)
    """Access token."""
    user: str | None
    """User name."""
    password: str | None = field(repr=False)
    """Password."""
    properties: Mapping[str, str] = field(repr=False)
    """Further properties of the handshake."""
    identity: Identity | None
    """Identity according to the broker's own users and tokens; `None` if they do not match."""


class Authority:
    """Decides about logins and actions. Override one or both methods; they can be ``async def``.

    The broker denies access if a method raises, returns an invalid value, or exceeds `timeout`. It calls the methods of
    an authority one at a time, so a plain method that blocks delays all logins. Connections that are already accepted
    wait only for answers about themselves.
    """

    timeout: ClassVar[Duration] = 5.0
    """Time for a method to answer (default 5 s)."""
    cache_seconds: ClassVar[Duration] = 1.0
    """Time for which an answer of `authorize` is reused for the same client, action and resource (default 1 s).
    A revoked permission stays valid for at most this long. With 0, every batch of commands is checked."""

    def authenticate(self, hello: Hello) -> Identity | Awaitable[Identity | None] | None:
        """Return the identity of a connection, or `None` to reject it. Default: `hello.identity`.

        A connection for which `hello.identity` itself is returned is closed when its token expires or is revoked.
        """
        return hello.identity

    def authorize(self, client: ClientView, action: Action, resource: str) -> bool | Awaitable[bool]:
        """Return whether `client` may perform `action` on `resource`, such as ``orders/1001``. Default: true.

        The broker calls it only for actions that the client's rules allow.
        """
        return True


def _overridden(authority: Authority, name: str) -> Callable[..., object] | None:
    method: Callable[..., object] = getattr(authority, name)
    return None if getattr(method, "__func__", None) is getattr(Authority, name) else method


def _report(method: str, exception: BaseException) -> None:
    """Log an exception of a method. Also called from the authority's thread."""
    _LOG.error("the authority failed in %s; denying access", method, exc_info=exception)


def _register(core: Any, authority: Authority, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Register an authority with the core of a broker that is not running. Raises `TypeError`."""
    if not isinstance(authority, Authority):
        raise TypeError(
            f"an authority must be an instance of a subclass of mqcore.authority.Authority, not {authority!r}"
        )
    methods = ("authenticate", "authorize")
    # The method of the base class allows everything that rules allow, so a misspelt one would go unnoticed.
    check_names(type(authority), Authority, methods, "a method of an authority")
    for method, arguments in zip(methods, (1, 3), strict=True):
        check_arguments(authority, Authority, (method, getattr(authority, method)), arguments)
    timeout = seconds(authority.timeout)

    def report(reply: AuthorityReply, exception: BaseException) -> None:
        reply.fail()
        _report(reply.method, exception)

    runner: LoopRunner[AuthorityReply] = LoopRunner(timeout, loop, raised=report, closed=report)
    core.set_authority(
        _overridden(authority, "authenticate"),
        _overridden(authority, "authorize"),
        timeout,
        seconds(authority.cache_seconds),
        runner.submit,
    )
