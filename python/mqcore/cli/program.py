"""The root command, and the only place that turns errors into one line on stderr and an exit code."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

import click

from mqcore.cli.exit_code import ExitCode, exit_code
from mqcore.cli.group import CommandGroup

__all__ = ["reporting", "root", "run"]


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code. Each error is one line on stderr.

    With MQCORE_DEBUG set, unexpected exceptions are raised instead.
    """
    return reporting(lambda: root().main(list(arguments), prog_name="mqcore", standalone_mode=False))


def reporting(program: Callable[[], Any]) -> int:
    """Run a part of the program like `run`: return its exit code, and print each error as one line on stderr."""
    try:
        result = program()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.UsageError as error:
        return _report(_usage(error), ExitCode.USAGE)
    except click.ClickException as error:
        return _report(error.format_message(), ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted", ExitCode.INTERRUPTED)
    except Exception as error:
        return _report_exception(error)
    return result if isinstance(result, int) else ExitCode.DONE


# The module of each command and its line in the help, in the order in which users need them. A module is imported when
# its command runs, which saves half of the time of a short command.
_COMMANDS: Final = {
    "serve": ("serve", "Run a broker."),
    "init": ("init", "Write a commented configuration file."),
    "config": ("config", "Show and check the configuration of a broker: show, check, schema."),
    "context": ("context", "Manage named brokers: ls, add, use, rm, show."),
    "publish": ("publish", "Publish messages to a queue or topic."),
    "consume": ("consume", "Consume messages from a queue or topic and print them."),
    "pull": ("consume", "Pull messages from a pull or cache queue."),
    "peek": ("peek", "Show the next messages of a queue without consuming them."),
    "send": ("direct", "Send a message to a client."),
    "request": ("direct", "Send a request to a client and print its response."),
    "receive": ("direct", "Receive direct messages, print them, and answer them."),
    "tail": ("tail", "Print events as they happen."),
    "status": ("status", "Show a broker's health, contents and problems on one screen."),
    "top": ("top", "Show a live table of queues."),
    "dead": ("dead", "Manage dead letters: ls, show, replay, discard."),
    "report": ("status", "List what is stuck, slow or dead: stuck, slow-consumers, dead."),
    "doctor": ("doctor", "Check a broker, its configuration and its machine."),
    "channel": ("channel", "Manage channels: ls, show, create, set, rm."),
    "queue": ("queue", "Manage queues: ls, show, create, set, status, clear, move, rm."),
    "policy": ("policy", "Set options of all queues that match a pattern: ls, show, set, rm."),
    "router": ("router", "Manage routers: ls, show, create, rm, bind, unbind, enable, disable, test."),
    "definitions": (
        "definitions",
        "Export, compare and import channels, queues, routers, policies: export, diff, import.",
    ),
    "client": ("client", "Manage connected clients: ls, show, disconnect."),
    "errors": ("errors", "Show recent request errors."),
    "stack": ("stack", "Show what a delivery handler executes."),
    "trace": ("trace", "Show a message's current location and its history."),
    "user": ("authority", "Manage users: add, ls, passwd, rm, hash."),
    "token": ("authority", "Manage access tokens: create, generate, ls, revoke."),
    "limit": ("limit", "Manage counters and limits: ls, get, set, reset, watch."),
    "run": ("run", "Run the handlers of an app."),
    "docs": ("docs", "Describe an app: asyncapi."),
    "worker": ("worker", "Run jobs."),
    "jobs": (
        "jobs",
        "Manage jobs: enqueue, result, state, cancel, status, workers, watch, failed, retry, schedules, unschedule.",
    ),
    "cluster": ("cluster", "Inspect and repair a cluster: force-new, ls, promote."),
    "node": ("node", "Inspect linked brokers: ls."),
    "journal": ("journal", "Read a stopped broker's files: ls, verify, export, replay, compact, accept-loss."),
    "backup": ("backup", "Copy the saved state of a running broker."),
    "restore": ("backup", "Create a data directory from a backup."),
    "drain": ("drain", "Stop a broker gracefully."),
    "bench": ("bench", "Measure a broker, or compare two results."),
    "pipeline": (
        "pipeline",
        "Analyze the history with Spark: ls, run, schedule, site, replay, quality, cost, anomalies.",
    ),
    "completion": ("completion", "Print a shell's completion script."),
    "version": ("version", "Print the version."),
}


class _Program(CommandGroup):
    """The root command, which imports a subcommand when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; `None` if there is none with that name."""
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"mqcore.cli.{module}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; name the context in an error."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if (used := ctx.meta.get("mqcore.used_context")) is not None:
                error.add_note(f"context {used.name}")
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


def root() -> click.Group:
    """Return the command `mqcore`, which has all others as subcommands."""
    return _Program(
        name="mqcore",
        help="Message broker, clients and administration. Exit codes: docs/cli.md.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        params=[
            click.Option(
                ["--context"],
                metavar="NAME",
                help="Named broker of 'mqcore context add'. It overrides MQCORE_URL, MQCORE_ADMIN and MQCORE_TOKEN. "
                "[env: MQCORE_CONTEXT, which does not override them]",
                callback=_store,
                expose_value=False,
                shell_complete=_complete_contexts,
            ),
            click.Option(
                ["--url"],
                metavar="URL",
                envvar="MQCORE_URL",
                help="URL of the broker. [default: that of the context, else tmqp://127.0.0.1:2622; env: MQCORE_URL]",
                callback=_store,
                expose_value=False,
            ),
            click.Option(
                ["--admin"],
                metavar="URL",
                envvar="MQCORE_ADMIN",
                help="URL of the broker's admin side. [default: that of the context, else http://127.0.0.1:2627; "
                "env: MQCORE_ADMIN]",
                callback=_store,
                expose_value=False,
            ),
            click.Option(
                ["--token"],
                metavar="TOKEN",
                envvar="MQCORE_TOKEN",
                help="Access token sent when connecting. MQCORE_TOKEN keeps it out of the list of processes. "
                "[env: MQCORE_TOKEN]",
                callback=_store,
                expose_value=False,
            ),
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                help="Print the version and exit.",
                callback=_print_version,
            ),
        ],
    )


def _store(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    ctx.meta[f"mqcore.{option.name}"] = value


def _complete_contexts(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    from mqcore.cli import context

    return context.matching_names(incomplete)


def _print_version(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import mqcore

        click.echo(mqcore.__version__)
        ctx.exit()


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "mqcore"
    return f"{error.format_message().rstrip('.')}  (see: {path} --help)"


def _report_exception(error: Exception) -> int:
    from mqcore import errors

    if isinstance(error, errors.MqcoreError):
        notes = getattr(error, "__notes__", [])
        return _report(f"{error}  ({', '.join(notes)})" if notes else str(error), exit_code(error))
    if isinstance(error, OSError) and error.filename is not None:
        return _report(f"{error.filename}: {error.strerror}", ExitCode.USAGE)
    if os.environ.get("MQCORE_DEBUG"):
        raise error
    kind = type(error).__name__
    return _report(
        f"internal error, please report it: {kind}: {error}  (set MQCORE_DEBUG=1 for a traceback)", ExitCode.DEFECT
    )


def _report(message: str, code: ExitCode) -> int:
    line = " ".join(message.split())
    click.echo(f"mqcore: {line}", err=True)
    return code
