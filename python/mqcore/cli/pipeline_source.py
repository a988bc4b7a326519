"""The options of `mqcore pipeline` that say which history is read, where the results go, and where Spark runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from mqcore.cli import target

__all__ = ["arguments", "place_options", "source"]

_F = TypeVar("_F", bound=Callable[..., Any])


def place_options(command: _F) -> _F:
    """Add the options: ``journal``, ``journal_admin``, ``journal_option``, ``out``, ``master``, ``driver_memory``."""
    for add in (
        click.option("--driver-memory", default="2g", show_default=True, help="Memory of the Spark driver."),
        click.option(
            "--master", metavar="URL", help="Spark master, for example spark://HOST:7077. [default: local[*]]"
        ),
        click.option(
            "--out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Directory for the results."
        ),
        click.option(
            "--journal-option",
            metavar="NAME=VALUE",
            multiple=True,
            help="Setting of the object store of --journal, for example aws_region=eu-central-1. Repeatable. "
            "[default: the environment]",
        ),
        click.option(
            "--journal-admin",
            metavar="URL",
            help="URL of the admin API of the broker whose archive --journal names, for history that is not archived "
            "yet. [default: read the archive only]",
        ),
        click.option(
            "--journal",
            metavar="SOURCE",
            required=True,
            type=click.Path(path_type=Path),
            help="Data directory of the broker, with its journals and its archive, or URL of its archive on object "
            "storage, for example s3://BUCKET/PREFIX. Opened read-only.",
        ),
    ):
        command = add(command)
    return command


def source(journal: Path, admin: str | None, options: Sequence[str]) -> os.PathLike[str]:
    """Return the history that the options name. Raises `click.UsageError` for options of the other kind."""
    from mqcore.spark.place import ObjectArchive, archive_url

    url = archive_url(str(journal))
    if url is not None:
        for option in options:
            if "=" not in option:
                raise click.BadParameter(f"invalid setting {option!r}; use NAME=VALUE", param_hint="--journal-option")
        return ObjectArchive(url, admin, target.token() if admin else None, tuple(options))
    if admin is not None or options:
        name = "--journal-option" if admin is None else "--journal-admin"
        raise click.UsageError(
            f"{name} is for an archive on object storage, and --journal {journal} is a data directory; remove {name}, "
            "or name the archive by its URL"
        )
    return journal


def arguments(journal: Path, admin: str | None, options: Sequence[str]) -> list[str]:
    """Return the same options for another process."""
    from mqcore.spark.place import archive_url

    found = ["--journal", archive_url(str(journal)) or str(journal.absolute())]
    found += [] if admin is None else ["--journal-admin", admin]
    return found + [part for option in options for part in ("--journal-option", option)]
