"""Progress of the current step of a pipeline, polled from Spark while it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqcore.spark.pipelines.catalogue import Progress

__all__ = ["unseen", "watched"]

_EVERY: Final = 0.3
"""Seconds between two polls."""


def unseen(_what: str, _done: int, _known: int) -> None:
    """Show nothing."""


@contextmanager
def watched(spark: SparkSession, progress: Progress | None) -> Iterator[Progress]:
    """Yield a function with which a pipeline names its step, and call `progress` with the step's finished tasks."""
    if progress is None:
        yield unseen
        return
    step = "start"
    ended = threading.Event()

    def name(what: str, done: int, known: int) -> None:
        nonlocal step
        step = what
        progress(what, done, known)

    def look() -> None:
        while not ended.wait(_EVERY):
            done, known = _tasks(spark)
            if known:
                progress(step, done, known)

    # Spark Connect sessions do not report tasks, so only the names of steps are shown.
    looking = threading.Thread(target=look, name="mqcore-pipeline-progress", daemon=True)
    if hasattr(spark, "_jsc"):
        looking.start()
    try:
        yield name
    finally:
        ended.set()
        if looking.is_alive():
            looking.join()


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """Finished and known tasks of the running stages."""
    done = known = 0
    # The session may be stopped meanwhile. Missing progress must not fail the pipeline.
    with suppress(Exception):
        tracker: Any = spark.sparkContext.statusTracker()
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done, known = done + info.numCompletedTasks, known + info.numTasks
    return done, known
