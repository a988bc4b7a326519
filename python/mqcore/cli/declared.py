"""Command-line options of queues and channels, made from the table that declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from mqcore._option_table import Option
from mqcore.cli import options

__all__ = ["STATUS", "declared"]

_STATUSES = ("broadcast", "push", "roundrobin", "pull", "cache", "paused", "stopped")

_METAVARS = {"dead letter": "QUEUE|drop", "key": "KEY", "rate": "RATE", "queue ids": "IDS"}

_F = TypeVar("_F", bound=Callable[..., Any])


class _Status(click.ParamType[str]):
    name = "status"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from mqcore.config import QueueStatus

        try:
            return QueueStatus(value).value
        except ValueError:
            self.fail(f"unknown status {value!r}; use one of {', '.join(_STATUSES)}", param, ctx)


class _QueueIds(click.ParamType[tuple[int, ...]]):
    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        ids = []
        for part in str(value).split(","):
            number = part.strip()
            if not number.isascii() or not number.isdigit() or int(number) > 65535:
                self.fail(f"invalid queue id {number!r}; use ids from 0 to 65535, for example 1,7,1001", param, ctx)
            ids.append(int(number))
        return tuple(ids)


STATUS = _Status()
"""Parameter type of a delivery mode. Converts any of its names to the usual one."""


def declared(table: Iterable[Option], prefix: str = "") -> Callable[[_F], _F]:
    """Add the options of a queue or channel to a command. Options that are not given are ``None``.

    With a `prefix` such as ``queue``, ``--status`` becomes ``--queue-status`` and its parameter ``queue_status``.
    """

    def add(command: _F) -> _F:
        for option in reversed(tuple(table)):
            if option.command is None:
                continue
            choices = f": {', '.join(_STATUSES)}" if option.kind == "status" else ""
            meaning = f"{option.meaning[0].upper()}{option.meaning[1:]}{choices}."
            command = click.option(
                option.command.replace("--", f"--{prefix}-") if prefix else option.command,
                f"{prefix}_{option.name}" if prefix else option.name,
                type=_type(option),
                metavar=_METAVARS.get(option.kind),
                default=None,
                help=f"Default of its queues: {meaning}" if prefix else meaning,
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
        "queue ids": _QueueIds(),
    }
    return types.get(option.kind)
