"""Programs that take part in the broker's life beside its queues: event handlers and authenticators.

An event handler receives events of clients, channels, queues and messages::

    class Audit(EventHandler):
        def client_connected(self, client):
            print(client.id, client.properties.get("Region"))

    broker = mqcore.Broker(event_handlers={"audit": Audit()}, event_handler="audit")

``event_handler`` of the broker names the handler of all channels; the channel option of the same name adds another one
for a channel. An authenticator decides which clients may join the channels whose option ``authenticator`` names it::

    class Staff(Authenticator):
        def authenticate(self, channel, client):
            return client.kind == "staff"

    broker = mqcore.Broker(authenticators={"staff": Staff()}, channel=mqcore.ChannelOptions(authenticator="staff"))
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeAlias, TypeVar

from mqcore._core import ChannelView, ClientView, Decision, Message, NodeView, PendingAnswers, QueueView
from mqcore._methods import check_arguments, check_names
from mqcore.config import QueueStatus, seconds
from mqcore.errors import ConfigError

if TYPE_CHECKING:
    from mqcore import _core
    from mqcore.config import Duration

__all__ = ["Authenticator", "Authenticators", "EventHandler", "EventHandlers"]

_Done: TypeAlias = Awaitable[None] | None
_T = TypeVar("_T", bound="EventHandler | Authenticator")
_Submit: TypeAlias = Callable[[PendingAnswers], None]


class EventHandler:
    """Hears what happens in a broker. Override the methods you need; they can be ``async def``.

    The broker does not wait for them: a handler that is slow or raises affects no client and no queue. The broker logs
    and counts exceptions (`HandlerStats.failed`). It drops events while 262,144 wait for a handler, and counts them
    (`HandlerStats.refused`). Methods that are not overridden cost nothing.

    >>> import queue
    >>> seen = queue.SimpleQueue()
    >>> class Audit(mqcore.EventHandler):
    ...     def client_connected(self, client):
    ...         seen.put(client.id)
    >>> broker.event_handlers["audit"] = Audit()
    >>> async with broker.client(id="till-7") as client:
    ...     print(seen.get(timeout=5))
    till-7
    """

    timeout: ClassVar[Duration] = 10.0
    """How long an awaited method may take. It is cancelled then. Default 10 s."""

    def client_connected(self, client: ClientView) -> _Done:
        """Called when a client has connected, for every registered handler."""

    def client_disconnected(self, client: ClientView) -> _Done:
        """Called when a client has disconnected and left all channels, for every registered handler."""

    def node_connected(self, node: NodeView) -> _Done:
        """Called when a link to another broker was established, for every registered handler."""

    def node_disconnected(self, node: NodeView) -> _Done:
        """Called when a link to another broker has ended, for every registered handler."""

    def channel_created(self, channel: ChannelView) -> _Done:
        """Called when a channel was created. Channels restored from the data directory are not created."""

    def channel_removed(self, channel: ChannelView) -> _Done:
        """Called when a channel was removed, after `queue_removed` for each of its queues."""

    def client_joined(self, channel: ChannelView, client: ClientView) -> _Done:
        """Called when a client has joined a channel, for all or for some of its queues."""

    def client_left(self, channel: ChannelView, client: ClientView) -> _Done:
        """Called when a client has left a channel, or disconnected."""

    def queue_created(self, queue: QueueView) -> _Done:
        """Called when a queue was created. Queues restored from the data directory are not created."""

    def queue_updated(self, queue: QueueView) -> _Done:
        """Called when options of a queue were changed."""

    def queue_status_changed(self, queue: QueueView, previous: QueueStatus) -> _Done:
        """Called after `queue_updated` if the status is another one; `queue.status` is the new status."""

    def queue_removed(self, queue: QueueView) -> _Done:
        """Called when a queue is removed; `queue.stats` still counts its messages."""

    def message_produced(self, queue: QueueView, message: Message, producer: ClientView) -> _Done:
        """Called when a queue took a message of a producer. `message.saved` tells whether it is saved."""

    def custom_message(self, client: ClientView, message: Message) -> _Done:
        """Called when a client sent a custom message over TMQP, for every registered handler that overrides it.

        Answer with `mqcore.Broker.send_custom`. If no handler overrides it, the broker drops and counts such messages.
        """


class Authenticator(ABC):
    """Decides which clients may join a channel. Override `authenticate`; it can be ``async def``.

    The client waits for the answer; nothing else does. If the method raises, returns something else than a bool, or
    exceeds `timeout`, the broker refuses the client.
    """

    timeout: ClassVar[Duration] = 5.0
    """Time to answer. Default 5 s."""

    @abstractmethod
    def authenticate(self, channel: str, client: ClientView) -> bool | Awaitable[bool]:
        """Return whether `client` may join `channel`, or consume a queue of it in another protocol.

        Called whenever a client joins, but not when a member joins again. The channel need not exist yet.
        """


_EVENTS: Final = {
    "client_connected": 1,
    "client_disconnected": 1,
    "node_connected": 1,
    "node_disconnected": 1,
    "channel_created": 1,
    "channel_removed": 1,
    "client_joined": 2,
    "client_left": 2,
    "queue_created": 1,
    "queue_updated": 1,
    "queue_status_changed": 2,
    "queue_removed": 1,
    "message_produced": 3,
    "custom_message": 2,
}
"""The methods of an event handler, with the number of arguments of each."""


class _Registry(Mapping[str, _T], Generic[_T]):
    """Handlers that a program registered, by key. Assigning registers, or replaces, also while the broker runs.

    Nothing is ever removed, because channels may name it; assign another object in its place.
    """

    _base: ClassVar[type]
    _what: ClassVar[str]
    _methods: ClassVar[Mapping[str, int]]

    def __init__(self, core: _core.Broker, runner: Callable[[str, float], _Submit]) -> None:
        self._core = core
        self._runner = runner
        self._registered: dict[str, _T] = {}

    def __setitem__(self, key: str, handler: _T) -> None:
        base, what = self._base, self._what
        if not isinstance(handler, base):
            raise TypeError(f"an {what} is an instance of a subclass of mqcore.{base.__name__}, not {handler!r}")
        if not key:
            raise ConfigError(f"the key of an {what} has at least one character")
        kind = type(handler)
        check_names(kind, base, self._methods, f"a method of an {what}")
        methods = []
        for name, arguments in self._methods.items():
            method = getattr(handler, name)
            if getattr(method, "__func__", None) is not getattr(base, name):
                check_arguments(handler, base, (name, method), arguments)
                methods.append((name, method))
        timeout = seconds(handler.timeout)
        registered = f"{what} {key}"
        self._core.set_handler(
            registered,
            f"{kind.__module__}.{kind.__qualname__}",
            methods,
            "memory",
            timeout,
            Decision(),
            self._runner(registered, timeout),
        )
        self._registered[key] = handler

    def __getitem__(self, key: str) -> _T:
        return self._registered[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._registered)

    def __len__(self) -> int:
        return len(self._registered)

    def _check(self, where: str, key: str | None) -> None:
        """Raise `ConfigError` if `key`, named by the setting `where`, is not registered."""
        if key is None or not key or key in self:
            return
        known: Iterable[str] = list(self)
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        registered = f"registered: {', '.join(known)}" if self._registered else "none is registered"
        raise ConfigError(
            f"{where}: no {self._what} has the key {key!r}{hint} ({registered}); register it before the broker starts"
        )


class EventHandlers(_Registry[EventHandler]):
    """The event handlers of a broker, by key: ``broker.event_handlers["audit"] = Audit()``."""

    _base = EventHandler
    _what = "event handler"
    _methods = _EVENTS


class Authenticators(_Registry[Authenticator]):
    """The authenticators of a broker, by key: ``broker.authenticators["staff"] = Staff()``."""

    _base = Authenticator
    _what = "authenticator"
    _methods: ClassVar[Mapping[str, int]] = {"authenticate": 2}
