"""Where a pipeline's tables go: each a directory of Parquet files that is replaced as a whole when it is complete."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from mqcore.spark.options import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Tables"]


class Tables:
    """The tables of one pipeline, in ``OUT/NAME/TABLE``. The directory is one that driver and executors share."""

    def __init__(self, out: str | os.PathLike[str], name: str) -> None:
        self.out = Path(local_path("out", str(Path(out).absolute())))
        self.report = self.out / f"{name}.html"
        self.paths: dict[str, Path] = {}
        self._directory = self.out / name
        self._directory.mkdir(parents=True, exist_ok=True)

    def path(self, table: str) -> Path:
        """Return where a table of this pipeline is, or will be."""
        return self._directory / table

    def write(self, table: str, rows: DataFrame, *, files: int | None = None) -> DataFrame:
        """Write a table, in `files` files at most, and return it as it stands there: nothing is computed twice."""
        unfinished = self._directory / f".{table}-{uuid.uuid4().hex}"
        try:
            (rows if files is None else rows.coalesce(files)).write.parquet(str(unfinished))
            self._put(unfinished, self.path(table))
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self.paths[table] = self.path(table)
        # With the schema told, Spark need not look at a file before it reads.
        return rows.sparkSession.read.schema(rows.schema).parquet(str(self.path(table)))

    def _put(self, unfinished: Path, final: Path) -> None:
        """Put a complete table in the place of the last one. Whoever has that one open keeps its files."""
        former = self._directory / f".{final.name}-former-{uuid.uuid4().hex}"
        if final.exists():
            final.rename(former)
        unfinished.rename(final)
        shutil.rmtree(former, ignore_errors=True)

    def write_page(self, page: str) -> Path:
        """Write the report, whole or not at all."""
        unfinished = self.report.with_name(f".{self.report.name}-{uuid.uuid4().hex}")
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(self.report)
        return self.report
