"""From the signature of a handler to the sources of its arguments: body, message, app, client, dependencies."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec

from mqcore.app.dependencies import Dependency, Parameter, Provider, kind_of, name_of, parameters
from mqcore.client import Batch, Client, Delivered, Incoming, Request
from mqcore.errors import ConfigError

__all__ = ["Handler", "Shape", "Source", "columns_kind", "compile_handler", "needs_thread"]

_EMPTY: Final = inspect.Parameter.empty


class Source(Enum):
    """From where an argument comes, if not from a `Provider`."""

    BODY = "body"
    MESSAGE = "message"
    APP = "app"
    CLIENT = "client"


class Shape(Enum):
    """The kind of messages that a handler takes."""

    DELIVERED = "delivered"
    REQUEST = "request"
    BATCH = "batch"


_MESSAGES: Final = {
    Shape.DELIVERED: (Delivered, Incoming),
    Shape.REQUEST: (Request, Incoming),
    Shape.BATCH: (Batch,),
}
_EXAMPLES: Final = {
    Shape.DELIVERED: "Delivered[Order]",
    Shape.REQUEST: "Request[Order]",
    Shape.BATCH: "Batch[Order]",
}


@dataclass
class Handler:
    """A function of the program, with the sources of its arguments."""

    function: Callable[..., Any]
    is_async: bool
    shape: Shape
    body: Any = _EMPTY
    """The type of bodies; empty: no parameter takes one."""
    body_annotation: Any = _EMPTY
    """The annotation of the parameter that takes the body, or the bodies of a batch."""
    body_metadata: tuple[Any, ...] = ()
    arguments: list[tuple[str, bool, Source | Provider | None]] = field(default_factory=list)
    """Name, whether it is passed by name, and source of each argument; ``None``: it keeps its default."""
    providers: list[Provider] = field(default_factory=list)
    """The dependencies for each message, every one after those that it needs."""
    app_providers: list[Provider] = field(default_factory=list)
    """The dependencies that live as long as the app, in the same order."""

    @property
    def name(self) -> str:
        """Its name for messages to people."""
        return name_of(self.function)

    @property
    def wanted(self) -> Any:
        """The type as which bodies are decoded."""
        return bytes if self.body is _EMPTY else self.body


def compile_handler(
    function: Callable[..., Any],
    shape: Shape,
    app_type: type,
    overrides: Mapping[Callable[..., Any], Callable[..., Any]],
    local_names: Mapping[str, Any],
    shared: dict[tuple[Any, ...], Provider],
) -> Handler:
    """Find the sources of a handler's arguments.

    `overrides` replaces dependencies. `shared` collects the dependencies that live as long as the app. Raises
    `ConfigError` for a parameter without a source, a type that no body can have, and a cycle of dependencies.
    """
    if not callable(function):
        raise ConfigError(f"a handler must be a function, not {function!r}")
    kind = kind_of(function)
    if kind.is_generator:
        raise ConfigError(f"handler {name_of(function)} is a generator; a handler returns its result")
    handler = Handler(function, kind.is_async, shape)
    graph = _Graph(handler, app_type, overrides, local_names, shared)
    for parameter in parameters(function, local_names):
        source = graph.source(parameter, function, "message", ())
        if source is None:
            source = _body_source(handler, parameter)
        _add(handler.arguments, parameter, source)
    return handler


def _add(
    arguments: list[tuple[str, bool, Source | Provider | None]], parameter: Parameter, source: Source | Provider | None
) -> None:
    """Add an argument. Those after one that keeps its default are passed by name."""
    by_name = parameter.keyword_only or any(kept is None for _, _, kept in arguments)
    arguments.append((parameter.name, by_name, source))


class _Graph:
    """Orders the dependencies of one handler."""

    def __init__(
        self,
        handler: Handler,
        app_type: type,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]],
        local_names: Mapping[str, Any],
        shared: dict[tuple[Any, ...], Provider],
    ) -> None:
        self._handler = handler
        self._app_type = app_type
        self._overrides = overrides
        self._local_names = local_names
        self._shared = shared
        self._cached: dict[Callable[..., Any], Provider] = {}

    def source(
        self, parameter: Parameter, function: Callable[..., Any], scope: str, path: tuple[Callable[..., Any], ...]
    ) -> Source | Provider | None:
        """Return the source of a parameter; ``None`` if it is neither a dependency nor one of mqcore's objects."""
        if parameter.dependency is not None:
            return self._provider(parameter.dependency, function, scope, path)
        annotation = parameter.annotation
        origin = typing.get_origin(annotation) or annotation
        if not isinstance(origin, type):
            return None
        if issubclass(origin, self._app_type):
            return Source.APP
        if issubclass(origin, Client):
            return Source.CLIENT
        if issubclass(origin, (Incoming, Batch)):
            self._check_message(parameter, origin, function, scope)
            return Source.MESSAGE
        if (origin.__module__, origin.__name__) == ("mqcore._core", "Message") or origin.__name__ == "_Message":
            raise ConfigError(
                f"parameter {parameter.name!r} of {name_of(function)} is annotated with Message, which is for delivery "
                f"handlers of a broker; annotate it with {_EXAMPLES[self._handler.shape]}"
            )
        return None

    def _check_message(self, parameter: Parameter, origin: type, function: Callable[..., Any], scope: str) -> None:
        handler = self._handler
        shown = f"parameter {parameter.name!r} of {name_of(function)}"
        if scope == "app":
            raise ConfigError(f"{shown} takes a message, but a dependency of scope 'app' is made before any message")
        if origin not in _MESSAGES[handler.shape]:
            raise ConfigError(
                f"{shown} is annotated with {origin.__name__}, but {handler.name} gets other messages; annotate it "
                f"with {_EXAMPLES[handler.shape]}"
            )
        wanted = next(iter(typing.get_args(parameter.annotation)), None)
        if wanted is None or wanted is Any or isinstance(wanted, typing.TypeVar):
            return
        _check_body(wanted, shown)
        _set_body(handler, wanted, shown)

    def _provider(
        self, declared: Dependency, asking: Callable[..., Any], scope: str, path: tuple[Callable[..., Any], ...]
    ) -> Provider:
        original = declared.dependency
        assert original is not None
        # A dependency of a web framework that finds its value in a request names the one to use without a request.
        function = self._overrides.get(original, getattr(original, "__mqcore_dependency__", original))
        if function in path:
            circle = (*path[path.index(function) :], function)
            raise ConfigError(
                f"dependency cycle of {self._handler.name}: {' -> '.join(map(name_of, circle))}; remove one of these "
                "dependencies"
            )
        if scope == "app" and declared.scope != "app":
            raise ConfigError(
                f"dependency {name_of(asking)} has scope 'app', but needs {name_of(function)} of scope 'message'; give "
                "both the scope 'app'"
            )
        known = self._shared.get((function,)) if declared.scope == "app" else self._cached.get(function)
        if known is not None and (declared.use_cache or declared.scope == "app"):
            if declared.scope == "app" and known not in self._handler.app_providers:
                self._handler.app_providers.append(known)
            return known
        provider = Provider(function, kind_of(function), declared.scope, declared.in_thread)
        for parameter in parameters(function, self._local_names):
            source = self.source(parameter, function, declared.scope, (*path, function))
            _add(provider.arguments, parameter, source)
            if source is None and not parameter.has_default:
                raise ConfigError(
                    f"parameter {parameter.name!r} of dependency {name_of(function)} has no source; give it a default, "
                    f"or annotate it with Annotated[..., Depends(...)] or {_EXAMPLES[self._handler.shape]}"
                )
        if declared.scope == "app":
            self._shared[(function,)] = provider
            self._handler.app_providers.append(provider)
        else:
            self._cached[function] = provider
            self._handler.providers.append(provider)
        return provider


def _body_source(handler: Handler, parameter: Parameter) -> Source | None:
    """Take a parameter as that of the body; ``None``: it keeps its default."""
    shown = f"parameter {parameter.name!r} of {handler.name}"
    if handler.body_annotation is not _EMPTY:
        if parameter.has_default:
            return None
        raise ConfigError(
            f"{shown} has no source: another parameter takes the body; annotate it with Annotated[..., Depends(...)] "
            f"or {_EXAMPLES[handler.shape]}"
        )
    if parameter.annotation is _EMPTY:
        if parameter.has_default:
            return None
        raise ConfigError(
            f"{shown} has no annotation; annotate it with the type of the body, such as bytes, or a dataclass"
        )
    handler.body_annotation, handler.body_metadata = parameter.annotation, parameter.metadata
    wanted = parameter.annotation
    if handler.shape is Shape.BATCH:
        wanted = _element(handler, parameter, shown)
    if wanted is not _EMPTY:
        _check_body(wanted, shown)
        _set_body(handler, wanted, shown)
    return Source.BODY


def _element(handler: Handler, parameter: Parameter, shown: str) -> Any:
    """Return the type of the bodies of a batch; empty if `Batch` or the metadata does not name one."""
    annotation = parameter.annotation
    origin = typing.get_origin(annotation)
    if origin is list:
        (element,) = typing.get_args(annotation) or (bytes,)
        if (inner := typing.get_origin(element) or element) is Delivered:
            (element,) = typing.get_args(element) or (bytes,)
        elif isinstance(inner, type) and issubclass(inner, Incoming):
            raise ConfigError(f"{shown} is a list of {inner.__name__}; use list[Delivered[Order]]")
        return element
    if columns_kind(annotation) is not None:
        return next((each for each in parameter.metadata if isinstance(each, type)), dict[str, Any])
    raise ConfigError(
        f"{shown} takes batches, but is annotated with {_shown(annotation)}; use list[Order], list[Delivered[Order]], "
        "Batch[Order], Annotated[pyarrow.Table, Order] or Annotated[dict[str, numpy.ndarray], Order]"
    )


def columns_kind(annotation: Any) -> str | None:
    """Return ``pyarrow``, ``pyarrow-batch`` or ``numpy`` if an annotation asks for columns."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None and annotation is pyarrow.Table:
        return "pyarrow"
    if pyarrow is not None and annotation is pyarrow.RecordBatch:
        return "pyarrow-batch"
    numpy = sys.modules.get("numpy")
    if numpy is not None and typing.get_origin(annotation) is dict:
        _, value = typing.get_args(annotation)
        if (typing.get_origin(value) or value) is numpy.ndarray:
            return "numpy"
    return None


def _set_body(handler: Handler, wanted: Any, shown: str) -> None:
    if handler.body is not _EMPTY and handler.body != wanted:
        raise ConfigError(
            f"{shown} expects bodies of type {_shown(wanted)}, but another parameter expects {_shown(handler.body)}; "
            "use one type"
        )
    handler.body = wanted


def _check_body(wanted: Any, shown: str) -> None:
    """Raise `ConfigError` if no body can be decoded as `wanted`."""
    if wanted is bytes or wanted is str or wanted is Any or _is_model(wanted):
        return
    try:
        msgspec.json.Decoder(wanted)
        problem = _custom_type(wanted)
    except (TypeError, ValueError) as error:
        problem = str(error)
    if problem:
        raise ConfigError(
            f"{shown} is annotated with {_shown(wanted)}, which no body can be decoded as: {problem}; use bytes, str, "
            "a dataclass, msgspec.Struct, TypedDict or pydantic model, or Depends(...) for other values"
        )


def _custom_type(wanted: Any) -> str:
    """Describe the type in `wanted` that msgspec cannot decode; empty: there is none."""
    seen: set[int] = set()

    def search(info: Any) -> str:
        if id(info) in seen:
            return ""
        seen.add(id(info))
        if isinstance(info, msgspec.inspect.CustomType):
            return f"{_shown(info.cls)} is not a type of data"
        if dataclasses.is_dataclass(info) or isinstance(info, msgspec.Struct):
            members = [getattr(info, name) for name in getattr(info, "__struct_fields__", ())]
            for member in members:
                for each in member if isinstance(member, tuple) else (member,):
                    if isinstance(each, msgspec.Struct) and (problem := search(each)):
                        return problem
        return ""

    return search(msgspec.inspect.type_info(wanted))


def _is_model(wanted: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(wanted, type) and issubclass(wanted, pydantic.BaseModel)


def _shown(kind: Any) -> str:
    plain = typing.get_origin(kind) is None and getattr(kind, "__qualname__", None)
    return str(plain or kind).replace(".<locals>", "")


def needs_thread(handler: Handler, provider: Provider) -> bool:
    """Whether a dependency runs in the thread of a plain handler: it is plain, and nothing on the loop needs it."""
    if handler.is_async or provider.kind.is_async:
        return False
    return not any(
        provider in (source for _, _, source in other.arguments) and not needs_thread(handler, other)
        for other in handler.providers
    )
