"""Who may do what, decided in Python: who gets in, and what each client may do.

::

    class Staff(Authority):
        async def authenticate(self, hello: Hello) -> Identity | None:
            person = await directory.find(hello.token)
            return Identity(person.name, allow=("push:orders/*",)) if person else None

    broker.authority = Staff()

Users and tokens with rules need none of this: see docs/security.md. Where both are there, `Hello.identity` says whom
the broker itself took the peer for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mqcore._answering import LoopRunner
from mqcore.config import Duration, seconds

if TYPE_CHECKING:
    from mqcore._core import AuthorityReply, ClientView

__all__ = ["Action", "Authority", "Certificate", "Hello", "Identity"]

_LOG: Final = logging.getLogger("mqcore.authority")


class Action(StrEnum):
    """What somebody wants to do."""

    CREATE = "create"
    """Create a channel or a queue."""
    JOIN = "join"
    """Become a consumer of a channel."""
    PUSH = "push"
    """Publish to a queue."""
    PULL = "pull"
    """Ask a queue for messages."""
    RECEIVE = "receive"
    """Be handed the messages of queues without asking for each."""
    DIRECT = "direct"
    """Send to another client, or answer one."""
    ROUTE = "route"
    """Publish to a router."""
    EVENTS = "events"
    """Subscribe to events."""
    ADMINISTER = "administer"
    """Look at what others do, change and remove what others made."""
    PUBLISH = "publish"
    """Publish to a topic."""
    SUBSCRIBE = "subscribe"
    """Subscribe to a topic."""
    LIMIT = "limit"
    """Use, change or remove a limit."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is, and what follows from it."""

    name: str
    """For people: in the audit log and in metrics."""
    allow: Sequence[str] = ("*",)
    """Rules such as ``push,pull:orders/*``. What no rule allows is denied, whatever `Authority.authorize` says.
    Default everything."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a peer has proven by TLS. The listener has verified it."""

    subject: str
    """The common name; empty if there is none."""
    names: tuple[str, ...]
    """Alternative names, each with its kind in front: ``dns:worker.example``."""
    fingerprint: str
    """SHA-256 of the certificate, hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What is known of a peer that wants to come in. Secrets are not part of its `repr`."""

    protocol: str
    """What it speaks: ``tmqp``; ``http`` for the admin side."""
    address: str | None
    """Where it comes from, ``192.0.2.7:50312``; `None` without a network."""
    encrypted: bool
    """Whether nobody on the way can read it."""
    certificate: Certificate | None
    """Its certificate, if the listener asks for one and it has one."""
    id: str | None
    """The client id that it wants."""
    name: str | None
    """Its client name."""
    kind: str | None
    """Its client type."""
    token: str | None = field(repr=False)
    """The token that it shows."""
    user: str | None
    """The user that it says it is."""
    password: str | None = field(repr=False)
    """The password of that user."""
    properties: Mapping[str, str] = field(repr=False)
    """What else it says."""
    identity: Identity | None
    """Whom the broker takes it for by its own users and tokens; `None` if for nobody."""


class Authority:
    """Decides who gets in and who may do what. Override what you want to decide; both methods may be ``async def``.

    An exception, nonsense and silence mean no. Methods of one authority are called one after the other, so a plain
    method that blocks makes every login wait; connections that are in wait only for answers about themselves.
    """

    timeout: ClassVar[Duration] = 5.0
    """How long an answer may take. Default 5 s."""
    cache_seconds: ClassVar[Duration] = 1.0
    """How long an answer of `authorize` is used again for the same client, action and resource: so long a permission
    can outlive its withdrawal. 0 asks for every batch of commands. Default 1 s."""

    def authenticate(self, hello: Hello) -> Identity | Awaitable[Identity | None] | None:
        """Say who this is, or `None` to turn it away. Not overridden: whoever the broker takes it for.

        Return `hello.identity` itself to accept what the broker found; the connection then also ends with its token.
        """
        return hello.identity

    def authorize(self, client: ClientView, action: Action, resource: str) -> bool | Awaitable[bool]:
        """Say whether `client` may do this to `resource`, such as ``orders/1001``. Asked only about what the client's
        rules allow. Not overridden: yes.
        """
        return True


def _overridden(authority: Authority, name: str) -> Callable[..., object] | None:
    method: Callable[..., object] = getattr(authority, name)
    return None if getattr(method, "__func__", None) is getattr(Authority, name) else method


def _report(method: str, exception: BaseException) -> None:
    """Log that a method raised. Called from the authority's thread too."""
    _LOG.error("the authority raised in %s; the answer is no", method, exc_info=exception)


def _register(core: Any, authority: Authority, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Tell the core of a broker that is not running about its authority."""
    if not isinstance(authority, Authority):
        raise TypeError(f"an authority is an instance of a subclass of mqcore.authority.Authority, not {authority!r}")
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
