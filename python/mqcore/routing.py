"""Routers: where messages go that were published to a name.

A ready-made router is data: a method and bindings, each of which leads to a queue, to clients, or to a topic::

    broker.routers.add("order-events", "only-first")
    broker.routers.bind("order-events", "orders/1001", priority=10)
    broker.routers.bind("order-events", "@topic:orders.late")

A router can also be written in Python. It is asked for each message, in batches, on a thread of its own (or, if
``route`` is ``async``, on the event loop that entered the broker), and says where the message goes::

    class ByCountry(mqcore.Router):
        def route(self, message, publisher):
            return f"orders-{message.headers.get('Country', 'xx')}/1"

    broker.routers["orders"] = ByCountry()

Something in between is a `BindingHandler`: one binding of a ready-made router that Python decides about.

The broker does not save these declarations: the program repeats them at its next start.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mqcore._core import ClientView, Decision, Message, PendingAnswers
from mqcore._methods import check_arguments
from mqcore.config import Binding, Interaction, RouteMethod, RouterOptions, seconds
from mqcore.errors import ConfigError

if TYPE_CHECKING:
    from mqcore import _core
    from mqcore.config import Duration

__all__ = [
    "Binding",
    "BindingHandler",
    "BindingHandlers",
    "Interaction",
    "RouteMethod",
    "Router",
    "RouterOptions",
    "Routers",
]

Targets: TypeAlias = str | Binding | Iterable[str | Binding] | None
"""Where a message goes: a target as `Binding` takes it, a `Binding` where it needs an interaction, several of them, or
``None`` for nowhere."""

_FIRST: Final = 2**31 - 1


class Router(ABC):
    """Decides in Python where each message goes that is published to it. Subclass it and override `route`.

    Messages leave a router in the order in which they came: one that waits for its decision holds those behind it in
    this router and nowhere else.

    >>> class ByCountry(mqcore.Router):
    ...     def route(self, message, publisher):
    ...         return f"orders-{message.headers['Country']}/1"
    >>> broker.routers["by-country"] = ByCountry()
    >>> async with mqcore.connect(broker) as client:
    ...     created = await client.declare("orders-fr", 1)
    ...     test = await client.test_router("by-country", headers={"Country": "fr"})
    >>> test.taken
    True
    """

    timeout: Duration = 10.0
    """Longest wait for `route` before `fallback` applies. Default 10 s."""
    fallback: Targets = None
    """Targets for a message if no target of `route` accepts it, or if `route` raises or is late. The first that accepts
    it gets it. Default none: a producer that waits receives the reason."""

    @abstractmethod
    def route(self, message: Message, publisher: ClientView) -> Targets | Awaitable[Targets]:
        """Return where `message` goes; every target gets it.

        Plain or ``async``. If it raises or returns another value, only this message fails: a producer that waits
        receives a negative acknowledgement, or a response with the reason.
        """


class BindingHandler(ABC):
    """A binding that is written in Python: registered under a key, it is bound as ``@handler:KEY``."""

    timeout: Duration = 10.0
    """Longest wait for `send` before it counts as false. Default 10 s."""

    @abstractmethod
    def send(self, message: Message, publisher: ClientView) -> bool | Targets | Awaitable[bool | Targets]:
        """Take `message`: return true if you have sent it yourself, targets to have it sent there, false to leave it.

        Plain or ``async``. An exception counts as false.
        """


_Submit: TypeAlias = Callable[[PendingAnswers], None]


class Routers(Mapping[str, "Router | RouterOptions"]):
    """The routers of a program, by name: ready-made ones and those written in Python. All of it works before the broker
    runs and while it runs, and takes the place of what a client made under the same name."""

    def __init__(
        self, core: _core.Broker, runner: Callable[[str, float], _Submit], declared: Iterable[RouterOptions]
    ) -> None:
        self._core = core
        self._runner = runner
        self._routers: dict[str, Router | RouterOptions] = {router.name: router for router in declared}

    def add(
        self, name: str, method: RouteMethod | str = RouteMethod.DISTRIBUTE, bindings: Iterable[Binding | str] = ()
    ) -> None:
        """Declare a ready-made router.

        Raises `ConfigError` for a name, a method or a target that cannot be.
        """
        chosen = tuple(each if isinstance(each, Binding) else Binding(each) for each in bindings)
        self[name] = RouterOptions(name, _method(method), chosen)

    def bind(
        self,
        name: str,
        target: str | Binding,
        *,
        priority: int = 0,
        interaction: Interaction | str = Interaction.NONE,
        content_type: int | None = None,
        method: RouteMethod | str = RouteMethod.DISTRIBUTE,
        binding: str | None = None,
    ) -> None:
        """Add a binding to a ready-made router of this program; `binding` is its name, by default the target.

        Raises `KeyError` for a router that was not declared here, and `ConfigError` for what cannot be bound.
        """
        router = self._ready_made(name)
        if not isinstance(target, Binding):
            target = Binding(
                target,
                binding,
                priority=priority,
                interaction=interaction,  # type: ignore[arg-type]
                content_type=content_type,
                method=_method(method),
            )
        self[name] = dataclasses.replace(router, bindings=(*router.bindings, target))

    def unbind(self, name: str, binding: str) -> None:
        """Remove a binding of a ready-made router of this program. Raises `KeyError` if there is none."""
        router = self._ready_made(name)
        kept = tuple(each for each in router.bindings if (each.name or each.target) != binding)
        if len(kept) == len(router.bindings):
            raise KeyError(binding)
        self[name] = dataclasses.replace(router, bindings=kept)

    def _ready_made(self, name: str) -> RouterOptions:
        router = self._routers[name]
        if not isinstance(router, RouterOptions):
            raise ConfigError(f"router {name!r} is written in Python: it says itself where messages go")
        return router

    def __setitem__(self, name: str, router: Router | RouterOptions) -> None:
        if isinstance(router, Router):
            options = self._register(name, router)
        elif isinstance(router, RouterOptions):
            options = router if router.name == name else dataclasses.replace(router, name=name)
        else:
            raise TypeError(
                f"a router is a mqcore.RouterOptions, or an instance of a subclass of mqcore.Router, not {router!r}"
            )
        self._core.set_router(options)
        self._routers[name] = router if isinstance(router, Router) else options

    def _register(self, name: str, router: Router) -> RouterOptions:
        """Have the router asked: as the first binding of one whose other bindings are the fallback."""
        check_arguments(router, Router, ("route", router.route), 2)
        key = f"router {name}"
        fallback = router.fallback
        several = () if fallback is None else (fallback,) if isinstance(fallback, (str, Binding)) else tuple(fallback)
        targets = [each if isinstance(each, Binding) else Binding(each) for each in several]
        bindings = [Binding(f"@handler:{key}", "route", priority=_FIRST)]
        bindings += [
            dataclasses.replace(each, name=f"fallback {each.target}", priority=-place)
            for place, each in enumerate(targets)
        ]
        options = RouterOptions(name, RouteMethod.ONLY_FIRST, tuple(bindings))
        _set_handler(self._core, key, router, ("route", router.route), router.timeout, self._runner)
        return options

    def __delitem__(self, name: str) -> None:
        del self._routers[name]
        self._core.remove_router(name)

    def __getitem__(self, name: str) -> Router | RouterOptions:
        return self._routers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._routers)

    def __len__(self) -> int:
        return len(self._routers)


class BindingHandlers(Mapping[str, BindingHandler]):
    """The bindings of a program that are written in Python, by key. Assigning registers, or replaces, also while the
    broker runs. One is never removed, because routers may name it; assign another in its place."""

    def __init__(self, core: _core.Broker, runner: Callable[[str, float], _Submit]) -> None:
        self._core = core
        self._runner = runner
        self._handlers: dict[str, BindingHandler] = {}

    def __setitem__(self, key: str, handler: BindingHandler) -> None:
        if not isinstance(handler, BindingHandler):
            raise TypeError(f"a binding is an instance of a subclass of mqcore.BindingHandler, not {handler!r}")
        check_arguments(handler, BindingHandler, ("send", handler.send), 2)
        _set_handler(self._core, key, handler, ("route", handler.send), handler.timeout, self._runner)
        self._handlers[key] = handler

    def __getitem__(self, key: str) -> BindingHandler:
        return self._handlers[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


def _method(method: RouteMethod | str) -> RouteMethod:
    try:
        return RouteMethod(method)
    except ValueError:
        raise ConfigError(f"there is no method {method!r}; there are {', '.join(RouteMethod)}") from None


def _set_handler(
    core: _core.Broker,
    key: str,
    handler: object,
    step: tuple[str, Callable[..., Any]],
    timeout: Duration,
    runner: Callable[[str, float], _Submit],
) -> None:
    kind = type(handler)
    patience = seconds(timeout)
    core.set_handler(
        key, f"{kind.__module__}.{kind.__qualname__}", [step], "memory", patience, Decision(), runner(key, patience)
    )
