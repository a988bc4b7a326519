"""`mqcore serve`: runs a broker as a process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeGuard

import click

from mqcore.cli import application, log
from mqcore.cli.broker_options import DEFAULT_LISTENERS, broker_environment, serve_options, settings_of
from mqcore.cli.exit_code import ExitCode
from mqcore.cli.service import Notifier

if TYPE_CHECKING:
    import asyncio

    from mqcore import _core
    from mqcore.authority import Authority
    from mqcore.broker import Broker
    from mqcore.config import BrokerConfig

__all__ = ["serve"]

# Seconds that a leader which stops waits for another node to lead.
_RESIGNATION_PATIENCE: Final = 3.0


@click.command()
@serve_options
def serve(app: str | None, config_file: str | None, log_format: str | None, drain_timeout: float, **given: Any) -> int:
    """Run a broker until SIGTERM or Ctrl-C. A second signal stops it immediately.

    Once all listeners are bound, the broker prints one JSON line with their addresses to stdout. Logs go to stderr.
    """
    import asyncio

    log.set_up(log_format)
    broker = _broker(app, config_file, settings_of(given))
    return asyncio.run(_serve(broker, drain_timeout))


def _broker(app: str | None, config_file: str | None, flags: dict[str, Any]) -> Broker:
    from mqcore.authority import Authority
    from mqcore.broker import Broker
    from mqcore.observing import Authenticator, EventHandler

    loaded = _load_app(app) if app is not None else {}
    if isinstance(loaded, Broker):
        if flags or config_file:
            names = [f"--{name.replace('_', '-')}" for name in flags] + (["--config"] if config_file else [])
            raise click.UsageError(
                f"{app} is a Broker, which has its own configuration; remove {', '.join(names)}, "
                "or export a mapping of handlers instead"
            )
        if not loaded.config.listen:
            raise click.UsageError(
                f"{app} is a Broker without listeners; create it with listen='{DEFAULT_LISTENERS[0]}'"
            )
        return loaded
    broker = Broker(_config(config_file, flags))
    if isinstance(loaded, Authority):
        loaded = {"authority": loaded}
    for key, handler in loaded.items():
        if isinstance(handler, Authority):
            broker.authority = handler
            continue
        try:
            if isinstance(handler, EventHandler):
                broker.event_handlers[key] = handler
            elif isinstance(handler, Authenticator):
                broker.authenticators[key] = handler
            else:
                broker.delivery_handlers[key] = handler
        except TypeError as error:
            raise click.UsageError(f"{app}, key {key!r}: {error}") from error
    return broker


def _config(config_file: str | None, flags: dict[str, Any]) -> BrokerConfig:
    import dataclasses

    from mqcore.config import BrokerConfig

    config = BrokerConfig.load(config_file, environ=broker_environment(), **flags)
    return config if config.listen or config.listener else dataclasses.replace(config, listen=DEFAULT_LISTENERS)


def _load_app(app: str) -> Authority | Broker | Mapping[str, Any]:
    from mqcore.authority import Authority
    from mqcore.broker import Broker

    def is_app(found: object) -> TypeGuard[Authority | Broker | Mapping[str, Any]]:
        return isinstance(found, Authority | Broker | Mapping)

    what = "an mqcore.Broker, a mapping of handlers, or an mqcore.authority.Authority"
    return application.load(app, "--app", is_app, what)


async def _serve(broker: Broker, drain_timeout: float) -> int:
    import asyncio
    import logging

    logger = logging.getLogger("mqcore.serve")
    stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    manager = Notifier()
    with _Signals(stop) as signals, _Reload(broker):
        member = None
        if broker.config.cluster is not None:
            from mqcore.cli.following import follow

            member = await follow(broker, stop, manager)
            if member is None:
                logger.info("stopped after signal %d", stop.result())
                return ExitCode.DONE
            signals.member = member
        # Without the event loop of this program: tasks that handlers start could end it.
        if not await _start(broker, member, stop, manager):
            return ExitCode.DONE
        try:
            if broker.config.data_dir is None:
                logger.warning(
                    "messages are kept in memory only and are lost when this process ends; set --data-dir to save them"
                )
            _print_ready(broker)
            manager.ready(f"listening on {', '.join(broker.listeners)}")
            # Administrators can stop a broker over some protocols, without a signal.
            stopped = asyncio.ensure_future(asyncio.to_thread(broker.wait))
            either: set[asyncio.Future[Any]] = {stop, stopped}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                logger.info("draining for up to %g s; a second signal stops immediately", drain_timeout)
            manager.stopping(f"draining for up to {drain_timeout:g} s")
            await broker.aclose(drain_timeout)
            await stopped
        finally:
            await broker.aclose()
        if member is not None:
            await asyncio.to_thread(member.resign, _RESIGNATION_PATIENCE)
    if stop.done():
        logger.info("stopped after signal %d", stop.result())
    else:
        logger.info("stopped without a signal: by an administrator, or because of an error logged above")
    return ExitCode.DONE


async def _start(
    broker: Broker, member: _core.ClusterMember | None, stop: asyncio.Future[int], manager: Notifier
) -> bool:
    """Start the broker. Returns whether it runs: a signal may stop a node that waits for a majority."""
    if member is None:
        broker.start()
        return True
    import asyncio

    from mqcore import errors

    if stop.done():
        member.stop_broker()
    try:
        # In another thread, because this one would not notice a signal.
        await asyncio.to_thread(broker.start)
    except errors.MqcoreError as error:
        if stop.done():
            return False
        if not isinstance(error, errors.DataDirFull):
            raise
        from mqcore.cli.following import restart

        await restart(str(error), manager)
    return True


def _print_ready(broker: Broker) -> None:
    import json

    listeners: dict[str, str] = {}
    for url in broker.listeners:
        protocol, _, address = url.partition("://")
        address, _, role = address.partition("?role=")
        kind = f"{protocol}-{role}" if role not in ("", "backend") else protocol
        before = sum(name == kind or name.rpartition("-")[0] == kind for name in listeners)
        listeners[f"{kind}-{before + 1}" if before else kind] = address
    admin = broker.admin_url.split("://", 1)[1] if broker.admin_url else None
    ready = {"event": "ready", "listeners": listeners, "admin": admin, "pid": os.getpid()}
    print(json.dumps(ready, separators=(",", ":")), flush=True)


class _Reload:
    """Reloads certificates, users and tokens on SIGHUP, on systems that have it, until the program ends."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __enter__(self) -> None:
        import asyncio
        import signal

        if hasattr(signal, "SIGHUP"):
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, self._reload)

    def __exit__(self, *_unused: object) -> None:
        import asyncio
        import signal

        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    def _reload(self) -> None:
        import logging

        log = logging.getLogger("mqcore.serve")
        # An error in one of them must not keep the other from being reloaded.
        try:
            self._broker.reload_tls()
        except Exception as error:
            log.error("cannot reload certificates; listeners keep the current ones: %s", error)
        else:
            log.info("reloaded certificates")
        try:
            self._broker.reload_authority()
        except Exception as error:
            log.error("cannot reload users and tokens; the current ones stay valid: %s", error)
        else:
            log.info("reloaded users and tokens")


class _Signals:
    """Completes a future at the first SIGTERM or Ctrl-C, and ends the process at the second."""

    def __init__(self, first: asyncio.Future[int]) -> None:
        self._first = first
        self.member: _core.ClusterMember | None = None
        """The node of a cluster that this process is, once it leads."""

    def __enter__(self) -> Self:
        import signal

        self._before = {number: signal.signal(number, self._caught) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_unused: object) -> None:
        import signal

        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, _frame: object) -> None:
        if self._first.done():
            # A second signal often means that a thread hangs, so exit without waiting for any thread.
            os._exit(128 + number)
        if self.member is not None:
            # At once: if the node stops leading, its process would restart and forget the signal.
            self.member.stop_broker()
        self._first.get_loop().call_soon_threadsafe(self._set, number)

    def _set(self, number: int) -> None:
        if not self._first.done():
            self._first.set_result(number)
