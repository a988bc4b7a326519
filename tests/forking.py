"""The process that forks programs for `programs.py`: `python forking.py SOCKET`. It has imported what they import."""

from __future__ import annotations

# Modules that programs import after their start. None of them starts a thread, opens a file or chooses a random number.
import encodings.idna  # noqa: F401
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile  # noqa: F401
from typing import Any

import click

import mqcore
import mqcore.broker
import mqcore.cli.program
import mqcore.extensions
import mqcore.jobs.pool.child
import mqcore.jobs.pool.process
import mqcore.jobs.pool.thread
import mqcore.journal
import mqcore.sync

# Every command imports its module when it is looked up.
program = mqcore.cli.program.root()
context = click.Context(program)
for name in program.list_commands(context):
    program.get_command(context, name)


def main(server: socket.socket) -> None:
    """Fork a program for each request until the tests close the socket."""
    children: dict[int, int] = {}
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.collect()
    gc.freeze()
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    waiting.register(wake, select.POLLIN)
    while True:
        ready = {file for file, _ in waiting.poll()}
        if wake in ready:
            os.read(wake, 4096)
            report(children)
        if server.fileno() in ready:
            head, streams, _, _ = socket.recv_fds(server, 4, 4)
            if not head:
                return
            size = int.from_bytes(head, "big")
            request = json.loads(server.recv(size, socket.MSG_WAITALL))
            *standard, status = streams
            pid = os.fork()
            if pid == 0:
                # The program gets its number for something else, which the end of this object would close.
                server.detach()
                become(request, standard)
                return
            children[pid] = status
            for stream in standard:
                os.close(stream)
            server.sendall(pid.to_bytes(4, "big"))


def report(children: dict[int, int]) -> None:
    """Report how programs ended."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = children.pop(pid)
        os.write(pipe, status.to_bytes(4, "big"))
        os.close(pipe)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Run the program in this process; its end is the end of the interpreter."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # The first entry is the directory of this file.
    sys.path[:] = [
        request["directory"],
        *filter(None, given),
        *(path for path in sys.path[1:] if path not in own),
    ]
    # The old ones have the same descriptors, and must not close them.
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = (
        io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False))),
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False))),
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
        ),
    )
    sys.argv[:] = ["mqcore", *request["arguments"]]
    runpy.run_module("mqcore", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
