"""Loads objects of users' modules that are named MODULE:ATTR on the command line."""

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
    """Import MODULE and return its ATTR, if `is_wanted` accepts it; `what` describes the accepted types for errors.

    Raises `click.UsageError`, which begins with `option`, if `named` is not MODULE:ATTR, if importing MODULE fails, or
    if ATTR is missing or of another type.
    """
    shown = f"{option} {named}".strip()
    module_name, colon, attribute = named.partition(":")
    if not colon or not module_name or not attribute:
        raise click.UsageError(f"{shown}: invalid name; use MODULE:ATTR, for example shop:app")
    # Modules in the working directory can be loaded, as with other programs that load an application.
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise click.UsageError(f"{shown}: {error}; run mqcore in the module's folder or install the module") from error
    except Exception as error:
        raise click.UsageError(f"{shown}: import failed with {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not is_wanted(found):
        instead = "missing" if found is None else f"of type {type(found).__name__}"
        raise click.UsageError(f"{shown}: {attribute} is {instead}; expected {what}")
    return found
