"""The root of the commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from mqcore.cli.exit_code import ExitCode, exit_code

__all__ = ["CommandGroup", "run"]


class CommandGroup(click.Group):
    """A group that knows what one may have meant."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end quietly if whoever reads our output has seen enough."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # What is still buffered must not complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.DONE

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first of `args` names."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            meant = f"; did you mean '{ctx.command_path} {close[0]}'?" if close else ""
            raise click.UsageError(f"there is no command '{ctx.command_path} {name}'{meant}", ctx)
        return super().resolve_command(ctx, args)


def run(arguments: Sequence[str]) -> int:
    """Run the program and return its exit code. Whatever goes wrong is one line on stderr."""
    try:
        result = root().main(list(arguments), prog_name="mqcore", standalone_mode=False)
    except click.UsageError as error:
        return _complain(_usage(error), ExitCode.USAGE)
    except click.ClickException as error:
        return _complain(error.format_message(), ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", ExitCode.INTERRUPTED)
    except Exception as error:
        return _failed(error)
    return result if isinstance(result, int) else ExitCode.DONE


def root() -> click.Group:
    """Put all commands together."""
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
        help="A message broker, and what talks to one. Exit codes and rules: docs/cli.md.",
        commands={command.name: command for command in commands if command.name is not None},
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        params=[
            click.Option(
                ["--url"],
                metavar="URL",
                envvar="MQCORE_URL",
                help="The broker to talk to. [default: tmqp://127.0.0.1:2622; env: MQCORE_URL]",
                callback=_remember_url,
                expose_value=False,
            ),
            click.Option(
                ["--token"],
                metavar="TOKEN",
                envvar="MQCORE_TOKEN",
                help="What to show the broker. [env: MQCORE_TOKEN, which others cannot see in the list of processes]",
                callback=_remember_token,
                expose_value=False,
            ),
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                help="Say which version this is, and leave.",
                callback=_print_version,
            ),
        ],
    )
    # Listed in the order of what people do, not of the alphabet.
    group.list_commands = lambda ctx: list(group.commands)  # type: ignore[method-assign]
    return group


def _remember_url(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    ctx.meta["mqcore.url"] = value


def _remember_token(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    ctx.meta["mqcore.token"] = value


def _print_version(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import mqcore

        click.echo(mqcore.__version__)
        ctx.exit()


def _usage(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "mqcore"
    return f"{error.format_message().rstrip('.')}  (see: {path} --help)"


def _failed(error: Exception) -> int:
    from mqcore import errors

    if isinstance(error, errors.MqcoreError):
        return _complain(str(error), exit_code(error))
    if isinstance(error, OSError) and error.filename is not None:
        return _complain(f"{error.filename}: {error.strerror}", ExitCode.USAGE)
    if os.environ.get("MQCORE_DEBUG"):
        raise error
    kind = type(error).__name__
    return _complain(
        f"a defect of mqcore, please report it: {kind}: {error}  (MQCORE_DEBUG=1 shows where)", ExitCode.DEFECT
    )


def _complain(message: str, code: ExitCode) -> int:
    line = " ".join(message.split())
    click.echo(f"mqcore: {line}", err=True)
    return code
