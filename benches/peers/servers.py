"""The brokers: each started on loopback, in a directory of its own, with equal and stated settings.

`memory`: nothing is saved. `fsync`: a message is confirmed after the file that contains it was synced.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from peers.machine import Processors
from peers.place import Missing, Place, Program, clean_environment

__all__ = [
    "SERVERS",
    "Durability",
    "Kind",
    "Server",
    "await_listener",
    "free_port",
    "port_mapper",
    "rabbitmq_environment",
    "running",
    "version_of",
]

Durability = Literal["memory", "fsync"]

_START_SECONDS_MAX = 90.0
_STOP_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running broker."""

    process: subprocess.Popen[str]
    addresses: Mapping[str, str]
    """HOST:PORT by protocol."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A broker that can be started."""

    name: str
    settings: Mapping[Durability, str]
    """Settings for the report."""
    install: Callable[[Place], Program]
    start: Callable[[Program, Durability, Path, Processors], contextlib.AbstractContextManager[Server]]
    version: Callable[[Program], str]


def free_port() -> int:
    """Return a port of loopback that no program uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    command: list[str | Path],
    processors: Processors,
    directory: Path,
    environment: Mapping[str, str],
    *,
    speaks: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program on the processors of the server; at the end, stop it and its processes. Its output is in `log`."""
    log: IO[str]
    with (directory / "log").open("a") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if speaks else log,
            stderr=log,
            text=True,
            cwd=directory,
            env={**clean_environment(), **environment},
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, processors.server),
        )
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS_MAX)
            # Processes of its session that remain; no other process is in that group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def await_listener(process: subprocess.Popen[str], port: int, directory: Path) -> None:
    """Wait until a broker listens. Raises `Missing` with its last words if it ends, or takes too long."""
    deadline = time.monotonic() + _START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            lines = (directory / "log").read_text(errors="replace").strip().splitlines()
            raise Missing(f"{Path(str(process.args[0])).name} does not listen: {lines[-1:]}")  # type: ignore[index]
        time.sleep(0.05)


# --- mqcore ----------------------------------------------------------------------------------------------------


def _install_mqcore(place: Place) -> Program:
    return Program(place.python("mqcore"))


@contextlib.contextmanager
def _start_mqcore(
    program: Program, durability: Durability, directory: Path, processors: Processors
) -> Iterator[Server]:
    command: list[str | Path] = [program.path, "-m", "mqcore", "serve", "--log-format", "json"]
    for url in ("tmqp://127.0.0.1:0", "throttr://127.0.0.1:0?value=uint64", "emqp://127.0.0.1:0"):
        command += ["--listen", url]
    if durability == "fsync":
        command += ["--data-dir", directory / "data"]
    with running(command, processors, directory, {}, speaks=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise Missing(f"mqcore does not start: {(directory / 'log').read_text().strip().splitlines()[-1:]}")
        yield Server(process, json.loads(line)["listeners"])


# --- Redis -----------------------------------------------------------------------------------------------------


def _install_redis(place: Place) -> Program:
    # The package redis-server has only a link to this program.
    return place.debian("redis-server", "usr/bin/redis-server")


@contextlib.contextmanager
def _start_redis(program: Program, durability: Durability, directory: Path, processors: Processors) -> Iterator[Server]:
    port = free_port()
    command: list[str | Path] = [program.path, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--dir", directory, "--client-output-buffer-limit", "pubsub 0 0 0"]
    command += ["--appendonly", "yes", "--appendfsync", "always"] if durability == "fsync" else ["--appendonly", "no"]
    with running(command, processors, directory, program.environment) as process:
        await_listener(process, port, directory)
        yield Server(process, {"redis": f"127.0.0.1:{port}"})


# --- NATS ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _start_nats(program: Program, durability: Durability, directory: Path, processors: Processors) -> Iterator[Server]:
    port = free_port()
    sync = "sync_interval: always, " if durability == "fsync" else ""
    store = f'jetstream {{ {sync}store_dir: "{directory / "jetstream"}" }}'
    (directory / "nats.conf").write_text(f"listen: 127.0.0.1:{port}\n{store}\n")
    command: list[str | Path] = [program.path, "--config", directory / "nats.conf"]
    with running(command, processors, directory, program.environment) as process:
        await_listener(process, port, directory)
        yield Server(process, {"nats": f"127.0.0.1:{port}"})


# --- RabbitMQ --------------------------------------------------------------------------------------------------

_RABBITMQ_SCRIPT = "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"


def _install_rabbitmq(place: Place) -> Program:
    installed = next(iter(sorted(Path("/").glob(_RABBITMQ_SCRIPT))), None)
    if installed is not None:
        return Program(installed)
    program = place.debian("rabbitmq-server", _RABBITMQ_SCRIPT, search=False)
    root = program.root / "usr/lib/erlang"
    binaries = next(iter(root.glob("erts-*/bin")))
    # Erlang's own script names the directory into which the package would have been installed.
    wrapper = program.root / "erlang" / "erl"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(
        f"#!/bin/sh\nROOTDIR={root} BINDIR={binaries} EMU=beam PROGNAME=erl\n"
        f'export ROOTDIR BINDIR EMU PROGNAME\nexec {binaries}/erlexec "$@"\n'
    )
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}:{binaries}:{os.environ['PATH']}"
    return Program(program.path, {**program.environment, "PATH": path}, program.root)


@contextlib.contextmanager
def _start_rabbitmq(
    program: Program, durability: Durability, directory: Path, processors: Processors
) -> Iterator[Server]:
    port, mapper, distribution = free_port(), free_port(), free_port()
    (directory / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.console = true\n")
    (directory / "enabled_plugins").write_text("[].\n")
    environment = rabbitmq_environment(program, directory, "bench", mapper, distribution)
    with (
        port_mapper(environment, mapper, processors, directory),
        running([program.path], processors, directory, environment) as process,
    ):
        await_listener(process, port, directory)
        yield Server(process, {"amqp": f"127.0.0.1:{port}"})


def rabbitmq_environment(
    program: Program, directory: Path, name: str, mapper: int, distribution: int
) -> dict[str, str]:
    """Return the environment of the node `name`, whose files are in `directory`."""
    return {
        **program.environment,
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"{name}@localhost",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        # Schedulers that spin while they wait would take the time of the next broker.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        "RABBITMQ_SERVER_START_ARGS": "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
    }


@contextlib.contextmanager
def port_mapper(environment: Mapping[str, str], port: int, processors: Processors, directory: Path) -> Iterator[None]:
    """Run Erlang's port mapper, which would otherwise stay after the broker."""
    path = environment.get("PATH", os.environ["PATH"])
    epmd: list[str | Path] = ["env", f"PATH={path}", "epmd", "-port", str(port), "-address", "127.0.0.1"]
    (directory / "epmd").mkdir()
    with running(epmd, processors, directory / "epmd", {}):
        yield


def _rabbitmq_version(program: Program) -> str:
    return program.path.parent.parent.name.rpartition("-")[2]


# --- Mosquitto -------------------------------------------------------------------------------------------------


def _install_mosquitto(place: Place) -> Program:
    return place.debian("mosquitto", "usr/sbin/mosquitto")


@contextlib.contextmanager
def _start_mosquitto(
    program: Program, durability: Durability, directory: Path, processors: Processors
) -> Iterator[Server]:
    port = free_port()
    user = "user root\n" if os.geteuid() == 0 else ""
    (directory / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n"
        f"set_tcp_nodelay true\n{user}"
    )
    command: list[str | Path] = [program.path, "-c", directory / "mosquitto.conf"]
    with running(command, processors, directory, program.environment) as process:
        await_listener(process, port, directory)
        yield Server(process, {"mqtt": f"127.0.0.1:{port}"})


def version_of(program: Program, *arguments: str) -> str:
    """Return the number in what a program prints about its version."""

    said = subprocess.run(
        [program.path, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **program.environment},
    )
    found = re.search(r"\d+(?:\.\d+)+", said.stdout + said.stderr)
    return found[0] if found else "unknown"


SERVERS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "mqcore",
            {"memory": "no data directory", "fsync": "data directory, delivery handler `at-least-once`"},
            _install_mqcore,
            _start_mqcore,
            lambda program: version_of(program, "-m", "mqcore", "version"),
        ),
        Kind(
            "redis",
            {"memory": "`save ''`, `appendonly no`", "fsync": "`appendonly yes`, `appendfsync always`"},
            _install_redis,
            _start_redis,
            lambda program: version_of(program, "--version"),
        ),
        Kind(
            "nats",
            {
                "memory": "core, or JetStream in memory where messages are confirmed",
                "fsync": "JetStream in files, `sync_interval: always`",
            },
            Place.nats_server,
            _start_nats,
            lambda program: version_of(program, "--version"),
        ),
        Kind(
            "rabbitmq",
            {"memory": "classic queue, transient messages", "fsync": "quorum queue of one node, confirms"},
            _install_rabbitmq,
            _start_rabbitmq,
            _rabbitmq_version,
        ),
        Kind(
            "mosquitto",
            {"memory": "QoS 0, `persistence false`"},
            _install_mosquitto,
            _start_mosquitto,
            lambda program: version_of(program, "-h"),
        ),
    )
}
"""All brokers by name; mqcore comes first."""
