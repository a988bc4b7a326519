"""All declarations of an app, checked and with their handlers resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqcore.app.declarations import RequestDeclaration, SubscriberDeclaration
from mqcore.app.dependencies import Provider, name_of
from mqcore.app.middleware import Middleware
from mqcore.app.publisher import Publisher, publishers_of
from mqcore.app.signature import Handler, Shape, compile_handler
from mqcore.errors import ConfigError

if TYPE_CHECKING:
    from mqcore.app.group import Group

__all__ = ["CompiledRequest", "CompiledSubscriber", "Declarations", "Target", "compile_declarations"]


@dataclass(frozen=True, slots=True)
class Target:
    """A publisher with its full name and middlewares."""

    publisher: Publisher[Any]
    queue: str
    middlewares: tuple[Middleware, ...]

    @property
    def name(self) -> str:
        """Its name for messages to people."""
        decorated = ", ".join(name_of(function) for function in self.publisher.decorated)
        return f"the publisher of {decorated}" if decorated else "a publisher"


@dataclass(frozen=True, slots=True)
class CompiledSubscriber:
    """A subscriber with its handler, and the publishers of its results."""

    declaration: SubscriberDeclaration
    handler: Handler
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class CompiledRequest:
    """A handler of direct messages, and the publishers of its results."""

    declaration: RequestDeclaration
    handler: Handler
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Declarations:
    """All declarations of an app."""

    subscribers: tuple[CompiledSubscriber, ...]
    requests: tuple[CompiledRequest, ...]
    targets: tuple[Target, ...]
    app_providers: tuple[Provider, ...]
    """The dependencies of scope ``app``, every one after those that it needs."""

    @property
    def threads(self) -> int:
        """The number of worker threads that can be busy at once."""
        found = 0
        handlers: list[CompiledSubscriber | CompiledRequest] = [*self.subscribers, *self.requests]
        for each in handlers:
            providers = (*each.handler.providers, *each.handler.app_providers)
            if not each.handler.is_async or any(provider.in_thread for provider in providers):
                found += each.declaration.concurrency
        return found


def compile_declarations(
    group: Group, app_type: type, overrides: Mapping[Callable[..., Any], Callable[..., Any]]
) -> Declarations:
    """Check and resolve everything that an app declares. Raises `ConfigError` for the first mistake."""
    shared: dict[tuple[Any, ...], Provider] = {}
    targets = tuple(Target(*each) for each in group._all_publishers())
    by_publisher = {target.publisher: target for target in targets}

    def of(declaration: SubscriberDeclaration | RequestDeclaration, shape: Shape) -> tuple[Handler, tuple[Target, ...]]:
        function = declaration.function
        handler = compile_handler(function, shape, app_type, overrides, declaration.local_names, shared)
        missing = [each for each in publishers_of(function) if each not in by_publisher]
        if missing:
            raise ConfigError(
                f"{handler.name} is decorated with {missing[0]!r}, whose group the app does not include; include the "
                "group"
            )
        return handler, tuple(by_publisher[each] for each in publishers_of(function))

    subscribers = []
    for declaration in group._all_subscribers():
        shape = Shape.DELIVERED if declaration.batch is None else Shape.BATCH
        subscribers.append(CompiledSubscriber(declaration, *of(declaration, shape)))
    requests = [CompiledRequest(each, *of(each, Shape.REQUEST)) for each in group._all_requests()]
    _check_queues(subscribers)
    _check_content_types(requests)
    functions = {each.declaration.function for each in subscribers} | {each.declaration.function for each in requests}
    _check_targets(targets, functions)
    return Declarations(tuple(subscribers), tuple(requests), targets, tuple(shared.values()))


def _check_queues(subscribers: list[CompiledSubscriber]) -> None:
    seen: dict[str, CompiledSubscriber] = {}
    for each in subscribers:
        queue = each.declaration.queue
        other = seen.setdefault(queue.lower(), each)
        if other is each:
            continue
        differing = [
            name
            for name in ("retry", "ack_policy", "queue_options", "on_bad_body", "prefetch", "concurrency")
            if getattr(each.declaration, name) != getattr(other.declaration, name)
        ]
        also = f" with different options ({', '.join(differing)})" if differing else ""
        raise ConfigError(
            f"queue {queue} has two subscribers{also}, {other.handler.name} and {each.handler.name}; each would get "
            "some of its messages. Use one subscriber with concurrency=, or bind a queue for each to a topic"
        )


def _check_content_types(requests: list[CompiledRequest]) -> None:
    seen: dict[int | None, CompiledRequest] = {}
    for each in requests:
        number = each.declaration.content_type
        other = seen.setdefault(number, each)
        if other is not each:
            kind = "all other content types" if number is None else f"content type {number}"
            raise ConfigError(
                f"requests of {kind} have two handlers, {other.handler.name} and {each.handler.name}; give each "
                "another content_type"
            )


def _check_targets(targets: tuple[Target, ...], handlers: set[Callable[..., Any]]) -> None:
    for target in targets:
        for function in target.publisher.decorated:
            if function not in handlers:
                raise ConfigError(
                    f"the publisher of {target.queue} decorates {name_of(function)}, which handles nothing; add "
                    "@app.subscriber above it, or call the publisher's method publish"
                )
