"""Calls of handlers: everything that is known when the app starts is resolved then, so that a call costs little."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar

from mqcore.app.dependencies import Kind, Provider
from mqcore.app.signature import Handler, Source, needs_thread

__all__ = ["BodyOf", "Call", "Environment", "RunInThread", "bind", "enter_async", "make_app_value"]

_T = TypeVar("_T")

Call: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Calls a handler with a message, and returns its result."""
BodyOf: TypeAlias = Callable[[Any], Any]
"""Returns the body argument for a message or a batch."""
_Getter: TypeAlias = Callable[[Any, list[Any]], Any]
"""Returns an argument, given the message and the values of its dependencies."""


class RunInThread(Protocol):
    """Calls a function in a worker thread of the app."""

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """Call it there, with the context variables of the caller."""


@dataclass(frozen=True)
class Environment:
    """Values that live as long as the app."""

    app: object
    client: object
    values: dict[Provider, Any]
    """The values of dependencies of scope ``app``."""
    run_in_thread: RunInThread


def _body(message: Any) -> Any:
    return message.body


def bind(handler: Handler, environment: Environment, body_of: BodyOf = _body) -> Call:
    """Return the call of a handler."""
    if handler.providers:
        bound = _Bound(handler, environment, body_of)
        return bound.call_directly if bound.is_direct else bound.call
    function = handler.function
    if not handler.is_async:
        function = _threaded(function, environment.run_in_thread)
    # The frequent signatures need no list of arguments.
    match [(source, by_name) for _, by_name, source in handler.arguments if source is not None]:
        case []:
            return lambda _: function()
        case [(Source.BODY, False)] if body_of is _body:
            return lambda message: function(message.body)
        case [(Source.BODY, False)]:
            return lambda message: function(body_of(message))
        case [(Source.MESSAGE, False)]:
            return function
        case [(Source.BODY, False), (Source.MESSAGE, False)] if body_of is _body:
            return lambda message: function(message.body, message)
        case _:
            pass
    positional, named = _getters(handler.arguments, environment, {}, body_of)
    empty: list[Any] = []
    if not named:
        return lambda message: function(*[get(message, empty) for get in positional])
    return lambda message: function(
        *[get(message, empty) for get in positional], **{name: get(message, empty) for name, get in named}
    )


def _threaded(function: Callable[..., Any], run_in_thread: RunInThread) -> Callable[..., Awaitable[Any]]:
    def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
        if not kwargs:
            return run_in_thread(function, *args)
        return run_in_thread(lambda: function(*args, **kwargs))

    return call


def _getters(
    arguments: Sequence[tuple[str, bool, Source | Provider | None]],
    environment: Environment,
    places: dict[Provider, int],
    body_of: BodyOf,
) -> tuple[list[_Getter], list[tuple[str, _Getter]]]:
    """Return getters of the positional arguments, and names and getters of the others."""
    found = [
        (name, by_name, _getter(source, environment, places, body_of))
        for name, by_name, source in arguments
        if source is not None
    ]
    positional = [get for _, by_name, get in found if not by_name]
    return positional, [(name, get) for name, by_name, get in found if by_name]


def _getter(
    source: Source | Provider, environment: Environment, places: dict[Provider, int], body_of: BodyOf
) -> _Getter:
    if isinstance(source, Provider):
        if source.scope == "app":
            value = environment.values[source]
            return lambda _message, _values: value
        place = places[source]
        return lambda _message, values: values[place]
    match source:
        case Source.BODY:
            return lambda message, _values: body_of(message)
        case Source.MESSAGE:
            return lambda message, _values: message
        case Source.APP:
            constant = environment.app
        case Source.CLIENT:
            constant = environment.client
    return lambda _message, _values: constant


class _Step:
    """Makes the value of one dependency."""

    def __init__(self, provider: Provider, environment: Environment, places: dict[Provider, int]) -> None:
        self.place = places[provider]
        self.kind = provider.kind
        self._environment = environment
        self._positional, self._named = _getters(provider.arguments, environment, places, _body)
        self.function: Callable[..., Any] = provider.function
        self.in_thread = provider.in_thread and not provider.kind.is_async
        if provider.kind is Kind.GENERATOR:
            self.function = contextmanager(provider.function)
        elif provider.kind is Kind.ASYNC_GENERATOR:
            self.function = asynccontextmanager(provider.function)

    def start(self, message: Any, values: list[Any]) -> Any:
        """Call its function: a value, an awaitable or a context manager, according to its kind."""
        if not self._named:
            return self.function(*[get(message, values) for get in self._positional])
        return self.function(
            *[get(message, values) for get in self._positional],
            **{name: get(message, values) for name, get in self._named},
        )

    async def make(self, message: Any, values: list[Any], stack: AsyncExitStack | None) -> None:
        """Store its value, on the event loop."""
        if self.in_thread:
            made = await self._environment.run_in_thread(self.start, message, values)
        else:
            made = self.start(message, values)
        match self.kind:
            case Kind.ASYNC:
                made = await made
            case Kind.ASYNC_GENERATOR:
                assert stack is not None
                made = await enter_async(stack, made)
            case Kind.GENERATOR:
                assert stack is not None
                if self.in_thread:
                    made = await enter_async(stack, _in_thread(made, self._environment.run_in_thread))
                else:
                    made = _enter(stack, made)
            case Kind.PLAIN:
                pass
        values[self.place] = made

    def make_here(self, message: Any, values: list[Any], stack: ExitStack) -> None:
        """Store its value, in the thread of a plain handler."""
        made = self.start(message, values)
        values[self.place] = _enter(stack, made) if self.kind is Kind.GENERATOR else made


def _enter(stack: AsyncExitStack | ExitStack, manager: AbstractContextManager[_T]) -> _T:
    """Enter a context manager. If it suppresses an exception at its end, `stack` raises it nevertheless: otherwise the
    message of a handler that has failed would be acknowledged.
    """
    value = manager.__enter__()

    def leave(kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        manager.__exit__(kind, error, traceback)

    stack.push(leave)
    return value


async def enter_async(stack: AsyncExitStack, manager: AbstractAsyncContextManager[_T]) -> _T:
    """Enter an async context manager. If it suppresses an exception at its end, `stack` raises it nevertheless."""
    value = await manager.__aenter__()

    async def leave(
        kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await manager.__aexit__(kind, error, traceback)

    stack.push_async_exit(leave)
    return value


@asynccontextmanager
async def _in_thread(manager: Any, run_in_thread: RunInThread) -> AsyncIterator[Any]:
    """Enter and leave a plain context manager in worker threads."""
    value = await run_in_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        if not await run_in_thread(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await run_in_thread(manager.__exit__, None, None, None)


class _Bound:
    """The call of a handler with dependencies."""

    def __init__(self, handler: Handler, environment: Environment, body_of: BodyOf) -> None:
        places = {provider: number for number, provider in enumerate(handler.providers)}
        steps = [(_Step(provider, environment, places), provider) for provider in handler.providers]
        self._here = [step for step, provider in steps if not needs_thread(handler, provider)]
        self._there = [step for step, provider in steps if needs_thread(handler, provider)]
        self._count = len(steps)
        self._has_generators = any(step.kind.is_generator for step in self._here)
        self._positional, self._named = _getters(handler.arguments, environment, places, body_of)
        self._function = handler.function
        self._is_async = handler.is_async
        self.is_direct = handler.is_async and all(step.kind is Kind.PLAIN and not step.in_thread for step in self._here)
        """Whether all dependencies are made by plain calls on the event loop."""
        self._run_in_thread = environment.run_in_thread

    def call_directly(self, message: Any) -> Awaitable[Any]:
        """Do what `call` does without anything to wait for or to end."""
        values: list[Any] = [None] * self._count
        for step in self._here:
            values[step.place] = step.start(message, values)
        if not self._named:
            return self._function(*[get(message, values) for get in self._positional])  # type: ignore[no-any-return]
        named = {name: get(message, values) for name, get in self._named}
        return self._function(*[get(message, values) for get in self._positional], **named)  # type: ignore[no-any-return]

    async def call(self, message: Any) -> Any:
        """Make the dependencies, call the handler, and end the generators."""
        values: list[Any] = [None] * self._count
        if self._has_generators:
            async with AsyncExitStack() as stack:
                for step in self._here:
                    await step.make(message, values, stack)
                return await self._call(message, values)
        for step in self._here:
            await step.make(message, values, None)
        return await self._call(message, values)

    async def _call(self, message: Any, values: list[Any]) -> Any:
        if not self._is_async:
            return await self._run_in_thread(self._call_there, message, values)
        return await self._function(
            *[get(message, values) for get in self._positional],
            **{name: get(message, values) for name, get in self._named},
        )

    def _call_there(self, message: Any, values: list[Any]) -> Any:
        with ExitStack() as stack:
            for step in self._there:
                step.make_here(message, values, stack)
            return self._function(
                *[get(message, values) for get in self._positional],
                **{name: get(message, values) for name, get in self._named},
            )


async def make_app_value(provider: Provider, environment: Environment, stack: AsyncExitStack) -> None:
    """Make the value of a dependency of scope ``app``; `stack` ends it."""
    step = _Step(provider, environment, {provider: 0})
    made: list[Any] = [None]
    await step.make(None, made, stack)
    environment.values[provider] = made[0]
