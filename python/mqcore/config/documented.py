"""The documentation of options: the texts below the fields of their classes."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any, Final

__all__ = ["meanings"]

_MEANINGS: Final[dict[type[Any], dict[str, str]]] = {}


def meanings(cls: type[Any]) -> dict[str, str]:
    """Return the text below each field, in one line and without markup; empty if the source is not installed."""
    if cls not in _MEANINGS:
        _MEANINGS[cls] = _read(cls)
    return _MEANINGS[cls]


def _read(cls: type[Any]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:
        return {}
    (tree,) = ast.parse(source).body
    if not isinstance(tree, ast.ClassDef):
        return {}
    found = {}
    for entry, below in zip(tree.body, tree.body[1:], strict=False):
        match entry, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = _plain(text)
    return found


def _plain(text: str) -> str:
    line = " ".join(text.replace("``", "`").split())
    # Links lead to other pages of the documentation.
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", line)
