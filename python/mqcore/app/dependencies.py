"""Dependencies of handlers: how they are declared, and how a graph of them is found and ordered."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from mqcore.errors import ConfigError

__all__ = [
    "Dependency",
    "Depends",
    "Kind",
    "Parameter",
    "Provider",
    "Scope",
    "function_of",
    "kind_of",
    "name_of",
    "parameters",
]

Scope: TypeAlias = Literal["app", "message"]
"""How long the value of a dependency lives: as long as the app runs, or for one message."""

_SCOPES: Final = typing.get_args(Scope)


@runtime_checkable
class _Declared(Protocol):
    """A dependency as any framework declares it: FastAPI's ``Depends`` has these attributes too."""

    dependency: Callable[..., Any] | None
    use_cache: bool


@dataclass(frozen=True, slots=True)
class Dependency:
    """A declared dependency, made by `Depends`."""

    dependency: Callable[..., Any] | None
    use_cache: bool = True
    scope: Scope = "message"
    in_thread: bool = False


def Depends(  # noqa: N802 (as in FastAPI)
    dependency: Callable[..., Any] | None = None,
    *,
    use_cache: bool = True,
    scope: Scope = "message",
    in_thread: bool = False,
) -> Any:
    """Declare that a parameter gets what `dependency` returns: ``db: Annotated[Db, Depends(get_db)]``.

    - `dependency`: a plain or ``async`` function, a generator of either kind, or a class. A generator yields the value
      once, and continues after the handler: there it can commit, or roll back if the handler raised. Default: the
      annotated type.
    - `use_cache`: call it once per message, however many parameters use it. Default true.
    - `scope`: ``"message"`` (default) or ``"app"``: called once when the app starts, and ended when it stops.
    - `in_thread`: run a plain function in a worker thread. Without it, the plain dependencies of an ``async`` handler
      run on the event loop, so they must not block; those of a plain handler run in its thread.

    Dependencies may have dependencies. They also get a `Delivered`, `Request` or `Batch`, the `App` or the `Client` if
    a parameter is annotated with it. FastAPI's ``Depends`` objects work too. Raises `ConfigError` for an unknown scope.

    >>> from typing import Annotated
    >>> def get_rates() -> dict[str, float]:
    ...     return {"A-100": 9.5}
    >>> Rates = Annotated[dict[str, float], mqcore.Depends(get_rates)]
    """
    if scope not in _SCOPES:
        raise ConfigError(f"scope must be 'app' or 'message', not {scope!r}")
    return Dependency(dependency, use_cache, scope, in_thread)


class Kind(Enum):
    """How a dependency makes its value."""

    PLAIN = 0
    ASYNC = 1
    GENERATOR = 2
    ASYNC_GENERATOR = 3

    @property
    def is_async(self) -> bool:
        """Whether it needs the event loop."""
        return self in {Kind.ASYNC, Kind.ASYNC_GENERATOR}

    @property
    def is_generator(self) -> bool:
        """Whether it continues after the handler."""
        return self in {Kind.GENERATOR, Kind.ASYNC_GENERATOR}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a handler or of a dependency."""

    name: str
    annotation: Any
    """The annotated type, without ``Annotated``; `inspect.Parameter.empty`: none."""
    metadata: tuple[Any, ...]
    """The further arguments of ``Annotated``."""
    has_default: bool
    keyword_only: bool
    dependency: Dependency | None


@dataclass(eq=False)
class Provider:
    """A function of the graph, and from where its arguments come."""

    function: Callable[..., Any]
    kind: Kind
    scope: Scope
    in_thread: bool
    arguments: list[tuple[str, bool, Any]] = field(default_factory=list)
    """Name, whether it is passed by name, and source of each argument; ``None``: it keeps its default."""


def name_of(function: object) -> str:
    """Return the name of a function for messages to people."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or repr(function)).replace(".<locals>", "")


def kind_of(function: Callable[..., Any]) -> Kind:
    """Return how a dependency makes its value."""
    # An object may be called through its class.
    for called in (function, _method_of(function)):
        if inspect.isasyncgenfunction(called):
            return Kind.ASYNC_GENERATOR
        if inspect.isgeneratorfunction(called):
            return Kind.GENERATOR
        if inspect.iscoroutinefunction(called):
            return Kind.ASYNC
    return Kind.PLAIN


def function_of(called: Callable[..., Any]) -> Any:
    """Return the function that runs when an object is called, without wrappers."""
    target: Any = called
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, type):
        target = vars(target).get("__init__", object.__init__)
    elif not inspect.isroutine(target):
        target = type(target).__call__
    return inspect.unwrap(target)


def _method_of(function: object) -> Any:
    """Return the method that runs when an object is called, unless it is a function itself."""
    return None if inspect.isroutine(function) else vars(type(function)).get("__call__")


def parameters(function: Callable[..., Any], local_names: Mapping[str, Any]) -> list[Parameter]:
    """Return the parameters of a function with their resolved annotations.

    Raises `ConfigError` if an annotation cannot be resolved, or for a parameter such as ``*args``.
    """
    hints = _hints(function, local_names)
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise ConfigError(
                f"parameter {parameter.name!r} of {name_of(function)} takes any number of arguments; list the "
                "parameters that the function needs"
            )
        annotation = hints.get(parameter.name, inspect.Parameter.empty)
        metadata: tuple[Any, ...] = ()
        if typing.get_origin(annotation) is Annotated:
            annotation, *rest = typing.get_args(annotation)
            metadata = tuple(rest)
        given = next((each for each in (*metadata, parameter.default) if isinstance(each, _Declared)), None)
        found.append(
            Parameter(
                name=parameter.name,
                annotation=annotation,
                metadata=metadata,
                has_default=parameter.default is not parameter.empty and not isinstance(parameter.default, _Declared),
                keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
                dependency=None if given is None else _known(given, annotation, parameter.name, function),
            )
        )
    return found


def _known(given: _Declared, annotation: Any, name: str, function: Callable[..., Any]) -> Dependency:
    """Return a declaration of any framework as ours."""
    dependency = given.dependency if given.dependency is not None else annotation
    if not callable(dependency):
        raise ConfigError(
            f"the dependency of parameter {name!r} of {name_of(function)} is {dependency!r}; pass a function to Depends"
        )
    # FastAPI's scopes, ``function`` and ``request``, both mean one message here.
    scope: Scope = "app" if getattr(given, "scope", None) == "app" else "message"
    return Dependency(dependency, given.use_cache, scope, bool(getattr(given, "in_thread", False)))


def _hints(function: Callable[..., Any], local_names: Mapping[str, Any]) -> dict[str, Any]:
    target = function_of(function)
    names = dict(local_names)
    if isinstance(target, types.FunctionType):
        names |= inspect.getclosurevars(target).nonlocals
    try:
        return typing.get_type_hints(target, _module_names(target), names, include_extras=True)
    except Exception as error:
        raise ConfigError(
            f"cannot resolve the annotations of {name_of(function)}: {error}; import the types of its parameters at "
            "run time, not only under TYPE_CHECKING"
        ) from error


def _module_names(target: Any) -> dict[str, Any]:
    own = getattr(target, "__globals__", None)
    return own if own is not None else vars(sys.modules.get(getattr(target, "__module__", ""), types))
