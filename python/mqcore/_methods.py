"""Checks of the methods that a program overrides: the broker would never call a misspelt one."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Final

__all__ = ["check_arguments", "check_names"]

_NEAR: Final = 0.8
"""How similar the name of a method must be to that of a step to count as misspelt, from 0 to 1."""


def check_names(kind: type, base: type, methods: Iterable[str], what: str) -> None:
    """Raise `TypeError` for a public method of `kind` whose name is nearly one of `methods`, those of `base`."""
    for name in dir(kind):
        if name.startswith("_") or hasattr(base, name) or not callable(getattr(kind, name)):
            continue
        if near := difflib.get_close_matches(name, methods, n=1, cutoff=_NEAR):
            raise TypeError(
                f"{kind.__qualname__}.{name} is not {what}, so the broker would never call it; "
                f"did you mean {near[0]}? Begin the name with an underscore if not"
            )


def check_arguments(handler: object, base: type, named: tuple[str, Callable[..., object]], arguments: int) -> None:
    """Raise `TypeError` for a method of `handler` that cannot take the arguments of the method of `base`."""
    step, method = named
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        # Nothing is known about a callable without a signature.
        return
    try:
        signature.bind(*(None,) * arguments)
    except TypeError as error:
        expected = ", ".join(list(inspect.signature(getattr(base, step)).parameters)[1:])
        raise TypeError(
            f"{type(handler).__qualname__}.{step} cannot be called with its {arguments} arguments ({expected}): {error}"
        ) from None
