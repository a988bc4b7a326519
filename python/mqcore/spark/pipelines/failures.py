"""The reason of a failed Spark job as one sentence: Spark's own errors have thousands of characters before it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mqcore import errors

__all__ = ["PipelineFailed", "reason_first", "reason_of"]

_REASON_MAX: Final = 500
_OURS: Final = re.compile(r"^(?:\s*Caused by: )?mqcore\.errors\.(\w+): (.+)$", re.MULTILINE)
_JAVA: Final = re.compile(r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+[A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(\w+(?:\.\w+)*(?:Error|Exception)): (.+)$", re.MULTILINE)
_MEMORY: Final = ("OutOfMemoryError", "unable to acquire", "SparkOutOfMemoryError")
_WRAPPERS: Final = ("SparkException", "PythonException", "Py4JJavaError", "ExecutionException", "SparkRuntimeException")
"""Errors that only say that something failed; the reason follows."""


class PipelineFailed(errors.MqcoreError):
    """Spark could not run a pipeline."""


_FILE = re.compile(r"(?:\w+:)?/[^\s'\"]+\.parquet\b")


@contextmanager
def reason_first(name: str) -> Iterator[None]:
    """Convert errors of Spark: to that of mqcore which caused them, else to `PipelineFailed` with the reason."""
    try:
        yield
    except errors.MqcoreError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j", "pyarrow")):
            raise
        raise reason_of(name, error) from error


def reason_of(name: str, error: Exception) -> errors.MqcoreError:
    """Return what an error of Spark says, without its tracebacks."""
    text = str(error)
    if ours := _OURS.findall(text):
        kind, words = ours[-1]
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, errors.MqcoreError):
            return known(words.strip())
        return PipelineFailed(f"{name}: {words.strip()}")
    if any(word in text for word in _MEMORY):
        return PipelineFailed(
            f"{name}: Spark ran out of memory; raise --driver-memory, or use a cluster with --master spark://HOST:PORT"
        )
    reason = _innermost(text)
    # Parquet's own errors do not name the file; the error of the task around them does.
    file = _FILE.search(text)
    if file and file.group() not in reason:
        reason = f"{reason} in {file.group()}"
    return PipelineFailed(f"{name}: {_cut(reason)}")


def _innermost(text: str) -> str:
    """The last error that says more than that something failed; a cause follows its consequences."""
    found = [(kind, words) for pattern in (_JAVA, _PYTHON) for kind, words in pattern.findall(text)]
    for kind, words in reversed(found):
        if kind.rpartition(".")[2] not in _WRAPPERS:
            return f"{words.strip()} ({kind.rpartition('.')[2]})"
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "File "))]
    return lines[0].strip() if lines else "Spark gave no reason"


def _cut(text: str) -> str:
    return text if len(text) <= _REASON_MAX else f"{text[:_REASON_MAX]}..."
