"""Generates the reference of the command line from the commands of the program."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from tables import cell, code, table

from mqcore.cli.exit_code import ExitCode
from mqcore.cli.program import root

HEAD = """# Command line reference

Every command of `mqcore` with its arguments and options. [Command line](../cli.md) explains them with
examples.
"""
CODES = {
    ExitCode.DONE: "Success.",
    ExitCode.REFUSED: "The broker rejected the request, or the command's condition was not met.",
    ExitCode.USAGE: "Invalid usage or configuration.",
    ExitCode.NOT_FOUND: "A named object does not exist.",
    ExitCode.NOT_ALLOWED: "Authentication failed, or the user lacks the right.",
    ExitCode.UNREACHABLE: "No connection, or no answer within the timeout.",
    ExitCode.DAMAGED: "Protocol violation by the peer, or damaged files in the data directory.",
    ExitCode.BUSY: "The broker is busy or at a limit; retry later.",
    ExitCode.DEFECT: "Internal error of mqcore.",
    ExitCode.INTERRUPTED: "Ended by Ctrl-C.",
    ExitCode.TERMINATED: "Ended by SIGTERM.",
}


def page() -> str:
    """The page with all commands."""
    program = root()
    context = click.Context(program, info_name="mqcore")
    parts = [HEAD, "## mqcore\n\n", options(program, context)]
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        if command is not None and not command.hidden:
            parts.extend(described(command, click.Context(command, parent=context, info_name=name), 2))
    rows = [(code(str(int(number))), text) for number, text in CODES.items()]
    parts.append("## Exit codes\n\n" + table(("code", "meaning"), rows))
    return "\n".join(parts)


def described(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """A command, and the commands of a group below it."""
    yield f"{'#' * level} {context.command_path}\n"
    if command.help:
        yield prose(command.help) + "\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield options(command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from described(inner, click.Context(inner, parent=context, info_name=name), level + 1)


def prose(text: str) -> str:
    """Help text as paragraphs; indented or literal blocks stay as they are."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.lstrip().startswith("\b") or paragraph.startswith("  "):
            lines = paragraph.replace("\b", "").strip("\n")
            paragraphs.append(f"```text\n{lines}\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()).replace("<", "&lt;"))
    return "\n\n".join(paragraphs)


def options(command: click.Command, context: click.Context) -> str:
    """The table of the options of a command; empty without any."""
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    rows = [
        (code(record[0]), cell(record[1].replace("<", "&lt;")))
        for record in records
        if record is not None and record[1]
    ]
    return table(("option", "meaning"), rows) if rows else ""
