"""Command-line options of queues and channels, made from the table that declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from mqcore._option_table import Option
from mqcore.cli import options

__all__ = ["STATUS", "declared"]

_STATUSES = ("broadcast", "push", "roundrobin", "pull", "cache", "paused", "stopped")

_F = TypeVar("_F", bound=Callable[..., Any])


class _Status(click.ParamType[str]):
    name = "status"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from mqcore.config import QueueStatus

        try:
            return QueueStatus(value).value
        except ValueError:
            self.fail(f"unknown status {value!r}; use one of {', '.join(_STATUSES)}", param, ctx)


STATUS = _Status()
"""Parameter type of a delivery mode. Converts any of its names to the usual one."""


def declared(table: Iterable[Option]) -> Callable[[_F], _F]:
    """Add the options of a queue or channel to a command. Options that are not given are ``None``."""

    def add(command: _F) -> _F:
        for option in reversed(tuple(table)):
            if option.command is None:
                continue
            choices = f": {', '.join(_STATUSES)}" if option.kind == "status" else ""
            command = click.option(
                option.command,
                option.name,
                type=_type(option),
                metavar={"dead letter": "QUEUE|drop", "key": "KEY", "rate": "RATE"}.get(option.kind),
                default=None,
                help=f"{option.meaning[0].upper()}{option.meaning[1:]}{choices}.",
            )(command)
        return command

    return add


def _type(option: Option) -> click.ParamType[Any] | None:
    if option.kind == "count":
        return click.IntRange(0, option.maximum if option.maximum < 2**32 - 1 else None)
    types: dict[str, click.ParamType[Any]] = {
        "status": STATUS,
        "duration": options.DURATION,
        "delay": options.DURATION,
        "durability": click.Choice(["none", "os", "fsync"]),
    }
    return types.get(option.kind)
