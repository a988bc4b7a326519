"""Catalog of the pipelines: names, options, and functions that run them over a data directory."""

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

__all__ = ["DESCRIPTIONS", "NAMES", "Outcome", "Progress", "follow", "known", "option_names", "parsed", "run"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""Callback for progress: current step, finished tasks, known tasks."""

DESCRIPTIONS: Final = {
    "lifecycle": "per queue and interval: rates, latencies, redeliveries, losses by reason",
    "reconcile": "fate of every message: acknowledged, dead-lettered, dropped or stored; lists unaccounted ones",
    "deadletters": "dead letters grouped by cause, with samples; publishes chosen ones again",
    "limits": "use by client or queue and window, effect of a limit, suggested quotas",
    "sessions": "activity of each client over all protocols, and conversations between clients",
    "features": "messages with JSON bodies as one flat table: types, null rates, drift against the last run",
    "compact": "copy of the archive in few large files, without old rows",
    "replay": "messages of a time range published again: filtered by SQL, rate-limited, each once",
    "quality": "JSON bodies: inferred schema per queue, drift between two periods, violations of a schema",
    "cost": "bytes, requests, redeliveries and storage by queue and client, with shares and prices",
    "anomalies": "rates and latencies against the same hour of earlier weeks, with alerts",
}
"""Description of each pipeline by name."""
NAMES: Final = tuple(DESCRIPTIONS)
"""Names of all pipelines."""


@dataclass(frozen=True)
class Outcome:
    """Result of a pipeline."""

    name: str
    summary: str
    """Result in one line."""
    report: Path
    """HTML report, one self-contained file."""
    tables: Mapping[str, Path]
    """Directories of the Parquet tables by name."""
    figures: Mapping[str, int | float] = field(default_factory=dict)
    ok: bool = True
    """Whether the pipeline found no error."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Findings as plain values for JSON."""


def known(name: str) -> None:
    """Raise `ConfigError` for an unknown pipeline. Does not need Spark."""
    if name not in NAMES:
        raise errors.ConfigError(f"unknown pipeline {name!r}; use one of {', '.join(NAMES)}")


def _function(name: str) -> Callable[..., Outcome]:
    known(name)
    try:
        module = importlib.import_module(f"mqcore.spark.pipelines.{name}")
    except ImportError as error:
        raise errors.ConfigError(f"{error.name or 'Spark'} is not installed; pip install 'mqcore[spark]'") from error
    function: Callable[..., Outcome] = getattr(module, name)
    return function


def option_names(name: str) -> dict[str, type]:
    """Return names and types of a pipeline's options, without its directories. Raises `ConfigError`."""
    import inspect

    own = ("spark", "data_dir", "out", "progress")
    kinds = {"int": int, "float": float, "bool": bool}
    parameters = inspect.signature(_function(name)).parameters
    return {key: kinds.get(str(p.annotation), str) for key, p in parameters.items() if key not in own}


def parsed(names: Sequence[str], given: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Parse options given as text, and return those of each pipeline. Raises `ConfigError` for an unknown one."""
    values: dict[str, dict[str, Any]] = {name: {} for name in names}
    every = {name: option_names(name) for name in names}
    for key, text in given.items():
        if not any(key in options for options in every.values()):
            there = sorted({option for options in every.values() for option in options})
            has = f"there is {', '.join(there)}" if there else "there is none"
            raise errors.ConfigError(f"unknown option {key!r} for {', '.join(names)}; {has}")
        for name, options in every.items():
            if key in options:
                values[name][key] = _value(key, text, options[key])
    return values


def _value(key: str, text: str, kind: type) -> object:
    if kind is bool:
        if text.lower() not in {"yes", "no"}:
            raise errors.ConfigError(f"{key} must be yes or no, not {text!r}")
        return text.lower() == "yes"
    try:
        return kind(text)
    except ValueError as error:
        raise errors.ConfigError(f"{key} must be a number, not {text!r}") from error


def run(
    name: str,
    spark: SparkSession,
    data_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Outcome:
    """Run a pipeline by name, with the options of its function.

    The result is also listed on the page ``OUT/index.html``; see `mqcore.spark.pipelines.write_site`.

    Raises `ConfigError` for an unknown pipeline or option, `DataDirMissing` also if there is no history,
    `DataDirUnreadable`, and `PipelineFailed` with the reason if Spark fails.
    """
    from mqcore.spark.pipelines.failures import reason_first
    from mqcore.spark.pipelines.site import record
    from mqcore.spark.pipelines.watching import watched

    function = _function(name)
    unknown = set(options) - set(option_names(name))
    if unknown:
        raise errors.ConfigError(f"unknown option {min(unknown)!r} for pipeline {name}")
    with reason_first(name), watched(spark, progress) as shown:
        outcome = function(spark, data_dir, out, progress=shown, **options)
    record(outcome, DESCRIPTIONS[name], data_dir)
    return outcome


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
    """Run a pipeline now, and again whenever the history has grown, at most every `every` seconds, without end.

    Each run reads the whole history, because the fate of a message depends on all of its events. Raises like `run`.
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
