"""Which pipelines there are, what each may be told, and how one is run over a data directory."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mqcore import errors

if TYPE_CHECKING:
    import os

    from pyspark.sql import SparkSession

__all__ = ["NAMES", "TELLS", "Outcome", "Progress", "follow", "known", "option_names", "parsed", "run"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told again and again what is being done, how many tasks of it are finished, and how many are known."""

TELLS: Final = {
    "lifecycle": "per queue and stretch of time: rates, latencies, redeliveries, losses by reason",
    "reconcile": "every message accounted for: acked, dead, dropped, there; or named",
    "deadletters": "what died and why, like put to like, with samples; re-drives what is chosen",
    "limits": "use by client or queue and window, whom a limit would have refused, suggested quotas",
    "sessions": "what each client did, over all protocols, and who spoke to whom",
    "features": "messages with JSON bodies as one flat table: types, null rates, drift against the last run",
    "compact": "the archive anew, in few large files, without what is too old",
}
"""What each pipeline tells."""
NAMES: Final = tuple(TELLS)
"""All pipelines."""


@dataclass(frozen=True)
class Outcome:
    """What a pipeline leaves behind."""

    name: str
    said: str
    """What came of it, in a line."""
    report: Path
    """A page that needs nothing beside it."""
    tables: Mapping[str, Path]
    """By name the directory with its Parquet files."""
    figures: Mapping[str, int | float] = field(default_factory=dict)
    fine: bool = True
    """Whether there is nothing that somebody should look at."""


def known(name: str) -> None:
    """Raise `ConfigError` unless there is such a pipeline. Needs no Spark."""
    if name not in NAMES:
        raise errors.ConfigError(f"there is no pipeline {name!r}; there are {', '.join(NAMES)}")


def _function(name: str) -> Callable[..., Outcome]:
    known(name)
    module = importlib.import_module(f"mqcore.spark.pipelines.{name}")
    function: Callable[..., Outcome] = getattr(module, name)
    return function


def option_names(name: str) -> dict[str, type]:
    """Return what a pipeline may be told beside its directories, by name with its type. Raises `ConfigError`."""
    import inspect

    own = ("spark", "data_dir", "out", "progress")
    kinds = {"int": int, "float": float, "bool": bool}
    parameters = inspect.signature(_function(name)).parameters
    return {key: kinds.get(str(p.annotation).split(" ")[0], str) for key, p in parameters.items() if key not in own}


def parsed(names: Sequence[str], given: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return, by pipeline, the options it has of those that are given as text. Raises `ConfigError` if none has one."""
    values: dict[str, dict[str, Any]] = {name: {} for name in names}
    every = {name: option_names(name) for name in names}
    for key, text in given.items():
        if not any(key in options for options in every.values()):
            there = sorted({option for options in every.values() for option in options})
            has = f"there is {', '.join(there)}" if there else "there is none"
            raise errors.ConfigError(f"{', '.join(names)} knows no option {key!r}; {has}")
        for name, options in every.items():
            if key in options:
                values[name][key] = _value(key, text, options[key])
    return values


def _value(key: str, text: str, kind: type) -> object:
    if kind is bool:
        if text not in {"true", "false"}:
            raise errors.ConfigError(f"{key} is true or false, not {text!r}")
        return text == "true"
    try:
        return kind(text)
    except ValueError as error:
        raise errors.ConfigError(f"{key} is a number, not {text!r}") from error


def run(
    name: str,
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Outcome:
    """Run a pipeline by its name; `options` are those of its function.

    Raises `ConfigError` for an unknown pipeline or option, `DataDirMissing` and `DataDirUnreadable`.
    """
    from mqcore.spark.pipelines.watching import watched

    function = _function(name)
    unknown = set(options) - set(option_names(name))
    if unknown:
        raise errors.ConfigError(f"the pipeline {name} has no option {min(unknown)!r}")
    with watched(spark, progress) as told:
        return function(spark, data_dir, out, progress=told, **options)


def follow(
    name: str,
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    every: float = 10.0,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[Outcome]:
    """Run a pipeline, and again whenever the history has grown, at most every `every` seconds; for ever.

    Each run is one over everything that is kept: a message's fate is known when its life is known from its beginning,
    which may be long ago. Raises what `run` raises.
    """
    from mqcore.spark.pipelines.history import History

    seen = ""
    while True:
        began = time.monotonic()
        mark = History.of(spark, data_dir).mark
        if mark != seen:
            yield run(name, spark, data_dir, out, progress=progress, **options)
            seen = mark
        time.sleep(max(0.0, every - (time.monotonic() - began)))
