"""`mqcore config`: shows the configuration that a broker would use, checks a file, and prints the schema of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from mqcore.cli import options, output
from mqcore.cli.broker_options import (
    DEFAULT_LISTENERS,
    FLAG_NAMES,
    PROCESS_OPTIONS,
    broker_environment,
    serve_options,
    settings_of,
)
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.group import CommandGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqcore.config.effective import Setting

__all__ = ["config"]

_COLUMNS: Final = ("name", "value")


@click.group(cls=CommandGroup)
def config() -> None:
    """Show and check the configuration of 'mqcore serve' without starting a broker."""


@config.command(short_help="Show the configuration that a broker would use.")
@serve_options
@click.option("--origin", is_flag=True, help="Also show where each value comes from.")
@options.as_json
def show(config_file: str | None, origin: bool, as_json: bool, **given: Any) -> None:
    """Show each setting that 'mqcore serve' would use with the same options, environment and file.

    Secrets are shown as ***.
    """
    from mqcore.config import effective

    flags = settings_of(given)
    found = effective.settings(config_file, broker_environment(), flags, FLAG_NAMES, DEFAULT_LISTENERS)
    rows = [_row(setting) for setting in (*found, *_process_settings(given))]
    if as_json:
        output.document("mqcore.config.show/1", {"config": config_file, "settings": rows})
        return
    columns = (*_COLUMNS, "origin") if origin else _COLUMNS
    output.rows("mqcore.config.show/1", "settings", rows, columns, as_json=False)


def _process_settings(given: dict[str, Any]) -> Iterator[Setting]:
    """Return the options of `mqcore serve` that no file has."""
    from mqcore.config.effective import Setting

    context = click.get_current_context()
    for name, option in PROCESS_OPTIONS.items():
        origin = context.get_parameter_source(name)
        kind, source = "default", None
        if origin is ParameterSource.COMMANDLINE:
            kind, source = "flag", option
        elif origin is ParameterSource.ENVIRONMENT:
            kind, source = "environment", f"MQCORE_{name.upper()}"
        yield Setting(name=option, value=given[name], kind=kind, source=source)


def _row(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": setting.value,
        "origin": setting.origin,
        "kind": setting.kind,
        "source": setting.source,
        "line": setting.line,
    }


@config.command(short_help="Check a configuration file.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@options.as_json
def check(file: Path, as_json: bool) -> int:
    """Check FILE and print every problem with its line. Starts nothing and opens no other file.

    Exit code 2 if there is a problem. Ports, certificates and the data directory are checked when the broker starts.
    """
    from mqcore.cli.config_problems import problems_of

    found = problems_of(file)
    if as_json:
        rows = [{"line": each.line, "setting": each.setting, "message": each.message} for each in found]
        output.document("mqcore.config.check/1", {"file": str(file), "valid": not found, "problems": rows})
    else:
        for problem in found:
            click.echo(f"{problem.place} {problem.message}")
        count = f"{len(found)} problem{'s' if len(found) > 1 else ''}"
        output.talk(f"{file} has {count}" if found else f"{file} is valid")
    return ExitCode.USAGE if found else ExitCode.DONE


@config.command(short_help="Print the JSON Schema of configuration files.")
def schema() -> None:
    """Print a JSON Schema (2020-12) of the TOML file, for editors that complete and check settings.

    \b
    mqcore config schema > mqcore.schema.json
    and as the first line of mqcore.toml:  #:schema ./mqcore.schema.json
    """
    from mqcore.config.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
