"""Tables of a pipeline: directories of Parquet files, each replaced as a whole once it is complete."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from mqcore.spark.place import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Tables"]


class Tables:
    """The tables of one pipeline, in ``OUT/NAME/TABLE``. Driver and executors must share the directory."""

    def __init__(self, out: str | os.PathLike[str], name: str) -> None:
        self.out = Path(local_path("out", str(Path(out).absolute())))
        self.report = self.out / f"{name}.html"
        self.paths: dict[str, Path] = {}
        self._directory = self.out / name
        self._directory.mkdir(parents=True, exist_ok=True)

    def path(self, table: str) -> Path:
        """Return the path of a table of this pipeline."""
        return self._directory / table

    def write(self, table: str, rows: DataFrame, *, files: int | None = None) -> DataFrame:
        """Write a table in at most `files` files, and return it as read from them: nothing is computed twice."""
        unfinished = self._directory / f".unfinished-{uuid.uuid4().hex}"
        try:
            (rows if files is None else rows.coalesce(files)).write.parquet(str(unfinished))
            self.put(unfinished, table)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        # With the schema, Spark does not open a file to infer it.
        return rows.sparkSession.read.schema(rows.schema).parquet(str(self.path(table)))

    def put(self, unfinished: Path, table: str) -> None:
        """Replace the previous table. Readers that have the old files open keep them."""
        final = self.path(table)
        final.parent.mkdir(exist_ok=True)
        former = self._directory / f".former-{uuid.uuid4().hex}"
        if final.exists():
            final.rename(former)
        unfinished.rename(final)
        shutil.rmtree(former, ignore_errors=True)
        self.paths[table] = final

    def write_page(self, page: str) -> Path:
        """Write the report atomically."""
        unfinished = self.report.with_name(f".{self.report.name}-{uuid.uuid4().hex}")
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(self.report)
        return self.report
