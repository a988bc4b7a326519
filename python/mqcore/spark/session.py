"""Spark sessions with the format ``mqcore``: created here, or an existing one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mqcore import errors
from mqcore.spark.jvm import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]

_SPARK_MIN: Final = 4
_QUIET: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Rows come from Python processes through a socket. Large reads and Unix sockets make scans a quarter faster.
    "spark.buffer.size": "262144",
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
}
_LOCAL: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_MANAGER: Final = "FileSystemBasedCheckpointFileManager"


def session(
    master: str | None = None, *, name: str = "mqcore", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session that reads and writes the format ``mqcore``, the running one if there is one.

    `master` is Spark's: ``local[2]``, ``spark://HOST:7077``; by default what spark-submit or the environment says, else
    ``local[*]``. `config` adds settings and overrides the defaults: no web UI, UTC, filter pushdown, Unix domain
    sockets to Python workers where available; a local session listens on this machine only.

    Raises `JavaMissing` without a Java of at least 17, and `ConfigError` if pyspark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise errors.ConfigError("Spark is not installed; pip install 'mqcore[spark]'") from error
    _check_version()
    active = SparkSession.getActiveSession()
    if active is not None:
        return register(active)
    ensure_java()
    # Without these, executors start the first python3 on PATH, and the driver resolves its own host name.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = master or os.environ.get("MASTER")
    local = chosen is None or chosen.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name)
    if chosen is not None:
        builder = builder.master(chosen)
    settings = {**_QUIET, **(_local() if local else {}), **(config or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Register the format ``mqcore`` with a session, and return the session. Can be called repeatedly.

    Spark finds the format by itself wherever mqcore is installed for its own Python; this is for where it is not. It
    also tells the format how many tasks the session runs at the same time, which is the default number of tasks of a
    read. Without it, that is the number of processors of the driver's machine.

    Raises `ConfigError` for a Spark before 4.0.
    """
    _check_version()
    from pyspark.errors import AnalysisException

    from mqcore.spark.source import MqcoreSource

    # A class that no module has is pickled with its attributes, so that Spark's Python processes know them.
    attributes = {"cores": _cores(spark), "__module__": __name__, "__doc__": MqcoreSource.__doc__}
    try:
        spark.dataSource.register(type("MqcoreSource", (MqcoreSource,), attributes))
    except AnalysisException as error:
        # Spark 4.0 does not replace a format that it has found by itself.
        if error.getErrorClass() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    return spark


def _local() -> dict[str, str]:
    """Return the settings of a session on this machine.

    Spark writes two files of the checkpoint for each batch of a stream. By default, it starts several programs for each
    file to set and read its permissions, which takes half of the time of a short batch. The other class needs fewer.
    """
    import pyspark

    major, minor = map(int, pyspark.__version__.split(".")[:2])
    package = f"{_STREAMING}.checkpointing" if (major, minor) >= (4, 1) else _STREAMING
    return {**_LOCAL, "spark.sql.streaming.checkpointFileManagerClass": f"{package}.{_MANAGER}"}


def _check_version() -> None:
    """Raise `ConfigError` for a Spark without Python data sources, before an import fails without a reason."""
    import pyspark

    if int(pyspark.__version__.partition(".")[0]) < _SPARK_MIN:
        raise errors.ConfigError(
            f"pyspark {pyspark.__version__} is too old: it has no Python data sources. Install {_SPARK_MIN}.0 or "
            "newer: pip install 'mqcore[spark]'"
        )


def _cores(spark: SparkSession) -> int | None:
    """Return how many tasks a session runs at the same time, or `None` if a client cannot know it."""
    from pyspark.errors import PySparkException

    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect has none.
        return None
    planned = int(context.getConf().get("spark.executor.instances", "0") or 0)
    each = int(context.getConf().get("spark.executor.cores", "1") or 1)
    # Executors may still be starting.
    return max(int(context.defaultParallelism), planned * each)
