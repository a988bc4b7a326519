"""Packs mqcore for executors that do not have it: an archive, and the settings with which Spark unpacks it.

::

    python -m mqcore.spark.bundle mqcore-bundle.tar.gz

The archive is for executors with this machine's operating system, processor and C library; they need pyarrow of their
own, and the driver's version of Python. Where executors come from an image, install mqcore in that instead.
"""

from __future__ import annotations

import importlib.util
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqcore import errors

if TYPE_CHECKING:
    import os

__all__ = ["bundle", "settings"]

PACKAGES: Final = ("mqcore", "pyspark_mqcore", "msgspec", "urllib3")
"""Packages that executors import. The command line needs more."""
PLACE: Final = "mqcore_bundle"
"""Directory into which Spark unpacks the archive."""


def bundle(target: str | os.PathLike[str]) -> dict[str, str]:
    """Write the archive, a ``.tar.gz``, and return the settings of a session that uses it.

    Raises `ConfigError` if a package is missing here, and `OSError` if it cannot be written.
    """
    path = Path(target).absolute()
    unfinished = path.with_name(f"{path.name}.part")
    # The extension module is most of the archive. A higher level takes ten times as long and saves little.
    with tarfile.open(unfinished, "w:gz", compresslevel=3) as archive:
        for name in PACKAGES:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                raise errors.ConfigError(f"cannot pack {name}: it is not installed")
            archive.add(Path(spec.origin).parent, arcname=name, filter=_wanted)
    unfinished.replace(path)
    return settings(path)


def settings(target: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings of a session whose executors unpack this archive."""
    return {"spark.archives": f"{Path(target).absolute()}#{PLACE}", "spark.executorEnv.PYTHONPATH": f"./{PLACE}"}


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name or entry.name.endswith(".pyc") else entry


def main(arguments: list[str]) -> int:
    """Write the archive named on the command line, and print the settings as arguments of spark-submit."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m mqcore.spark.bundle FILE.tar.gz", file=sys.stderr)
        return 2
    for name, value in bundle(arguments[0]).items():
        print(f"--conf {name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
