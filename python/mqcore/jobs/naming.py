"""Full names of functions and exceptions, the same in workers and clients."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

__all__ = ["full_name", "module_name"]


def full_name(thing: Any) -> str:
    """Return the module and qualified name of a function or class; for a built-in the name alone."""
    name: str = getattr(thing, "__qualname__", type(thing).__qualname__)
    if vars(builtins).get(name) is thing:
        return name
    return f"{module_name(thing.__module__)}.{name}"


def module_name(module: str) -> str:
    """Return the name under which other programs import a module, also for ``__main__``."""
    if module not in {"__main__", "__mp_main__"} or module not in sys.modules:
        return module
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else module
