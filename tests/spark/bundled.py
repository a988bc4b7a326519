"""An executor's Python: it has what executors need besides the bundle, and finds no site-packages."""

from __future__ import annotations

import sys
from pathlib import Path


def executors_python(place: Path) -> tuple[Path, Path]:
    """Return a Python without site-packages, and a directory with pyarrow, numpy and pandas."""
    import numpy
    import pandas
    import pyarrow

    links = place / "links"
    links.mkdir()
    for module in (pyarrow, numpy, pandas):
        origin = Path(module.__file__ or "").parent
        for path in (origin, *origin.parent.glob(f"{origin.name}.libs")):
            (links / path.name).symlink_to(path)
    for name in ("pytz", "dateutil", "six.py", "tzdata"):
        if (found := Path(pyarrow.__file__).parents[1] / name).exists():
            (links / name).symlink_to(found)
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return python, links
