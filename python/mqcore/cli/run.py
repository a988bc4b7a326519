"""`mqcore run`: runs the handlers of an app, in this process or in several."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from mqcore.cli import application, log, options, target
from mqcore.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from mqcore.app import App

__all__ = ["run", "serve"]


@click.command()
@click.argument("app", metavar="MODULE:ATTR")
@click.option(
    "--url",
    metavar="URL",
    help="URL of the broker. [default: that of --context, else that of the app, else MQCORE_URL]",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of processes. Processes that end with an error are started again.",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file below the working directory changes.")
@click.option(
    "--drain-timeout",
    type=options.DURATION,
    help="Time for running handlers to finish after SIGTERM. [default: that of the app, 30s]",
)
@options.log_format
def run(
    app: str, url: str | None, workers: int, reload: bool, drain_timeout: float | None, log_format: str | None
) -> int:
    """Run the handlers of MODULE:ATTR, an mqcore.App, until SIGTERM or Ctrl-C. A second signal stops them immediately.

    Once the app consumes, it prints one JSON line to stdout. Logs go to stderr.
    """
    log.set_up(log_format)
    broker, token = _broker(url)
    settings = {
        "app": app,
        "broker": broker,
        "token": token,
        "drain_timeout": drain_timeout,
        "log_format": log_format or ("console" if sys.stderr.isatty() else "json"),
    }
    if workers == 1 and not reload:
        return serve(load(app), broker=broker, token=token, drain_timeout=drain_timeout)
    from mqcore.cli.supervisor import Supervisor

    if reload:
        _check_reload()
    return Supervisor(settings, workers, reload=reload).run()


def _broker(url: str | None) -> tuple[str | None, str | None]:
    """Return the URL and the token of the command line; `None`: the app decides."""
    meta = click.get_current_context().meta
    named = url or target.named_context() or target.is_url_option()
    if not named:
        return None, meta.get("mqcore.token")
    found = target.listener(url)
    return found.url, found.token


def _check_reload() -> None:
    from importlib.util import find_spec

    if find_spec("watchfiles") is None:
        raise click.UsageError("--reload needs the package watchfiles; install it with: pip install 'mqcore[reload]'")


def load(named: str) -> App:
    """Return the app that MODULE:ATTR names. Raises `click.UsageError`."""
    from mqcore.app import App

    def is_app(found: object) -> TypeGuard[App]:
        return isinstance(found, App)

    return application.load(named, "", is_app, "an mqcore.App")


def serve(app: App, *, broker: str | None, token: str | None, drain_timeout: float | None) -> int:
    """Run an app in this process, and return its exit code."""
    import asyncio

    if broker is not None:
        app.locate(broker, token=token)
    elif token is not None:
        app.locate(token=token)
    if drain_timeout is not None:
        app.drain_timeout = drain_timeout
    cancelled = asyncio.run(app.serve(on_ready=lambda: _print_ready(app)))
    return ExitCode.REFUSED if cancelled else ExitCode.DONE


def _print_ready(app: App) -> None:
    pid = os.getpid()
    ready: dict[str, Any] = {"event": "ready", "app": app.name, "consumes": app.consumes, "pid": pid, "pids": [pid]}
    print(json.dumps(ready, separators=(",", ":")), flush=True)
