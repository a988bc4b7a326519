"""The root command, and the only place that turns errors into one line on stderr and an exit code."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from mqcore.cli.exit_code import ExitCode, exit_code
from mqcore.cli.group import CommandGroup

__all__ = ["run"]


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code. Each error is one line on stderr.

    With MQCORE_DEBUG set, unexpected exceptions are raised instead.
    """
    try:
        result = root().main(list(arguments), prog_name="mqcore", standalone_mode=False)
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


def root() -> click.Group:
    """Return the command `mqcore` with all of its subcommands."""
    from mqcore.cli import (
        authority,
        backup,
        channel,
        client,
        consume,
        direct,
        errors,
        jobs,
        journal,
        limit,
        node,
        pipeline,
        publish,
        queue,
        router,
        serve,
        tail,
        trace,
        version,
        worker,
    )

    commands = [
        serve.serve,
        publish.publish,
        consume.consume,
        consume.pull,
        direct.send,
        direct.request,
        direct.receive,
        tail.tail,
        channel.channel,
        queue.queue,
        router.router,
        client.client,
        errors.errors,
        trace.trace,
        authority.user,
        authority.token,
        limit.limit,
        worker.worker,
        jobs.jobs,
        node.node,
        journal.journal,
        backup.backup,
        backup.restore,
        pipeline.pipeline,
        version.version,
    ]
    group = CommandGroup(
        name="mqcore",
        help="Message broker, clients and administration. Exit codes: docs/cli.md.",
        commands={command.name: command for command in commands if command.name is not None},
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        params=[
            click.Option(
                ["--url"],
                metavar="URL",
                envvar="MQCORE_URL",
                help="URL of the broker. [default: tmqp://127.0.0.1:2622; env: MQCORE_URL]",
                callback=_store_url,
                expose_value=False,
            ),
            click.Option(
                ["--token"],
                metavar="TOKEN",
                envvar="MQCORE_TOKEN",
                help="Access token sent when connecting. MQCORE_TOKEN keeps it out of the list of processes. "
                "[env: MQCORE_TOKEN]",
                callback=_store_token,
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
    # In the order in which users need them, not alphabetical.
    group.list_commands = lambda ctx: list(group.commands)  # type: ignore[method-assign]
    return group


def _store_url(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    ctx.meta["mqcore.url"] = value


def _store_token(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    ctx.meta["mqcore.token"] = value


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
        return _report(str(error), exit_code(error))
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
