"""Objects of users' modules that commands are told as MODULE:ATTR."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import TypeGuard, TypeVar

import click

__all__ = ["load"]

T = TypeVar("T")


def load(named: str, option: str, is_wanted: Callable[[object], TypeGuard[T]], what: str) -> T:
    """Import MODULE and return its ATTR, if it is what is wanted; `what` says in words what that is.

    Raises `UsageError`, which begins with `option`, for a name of another form, a module that is not there or raises,
    and an ATTR that is something else.
    """
    shown = f"{option} {named}".strip()
    module_name, colon, attribute = named.partition(":")
    if not colon or not module_name or not attribute:
        raise click.UsageError(f"{shown}: write MODULE:ATTR, such as shop:app")
    # As with every program that loads an application: what lies where one stands can be named.
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{shown}: {error}; is it in this folder, or installed?") from error
    except Exception as error:
        raise click.UsageError(f"{shown}: importing it raised {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not is_wanted(found):
        instead = "missing" if found is None else f"a {type(found).__name__}"
        raise click.UsageError(f"{shown}: {attribute} is {instead}; it must be {what}")
    return found
