"""Tells a service manager such as systemd when the broker is ready and when it stops (`sd_notify(3)`)."""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

__all__ = ["Notifier"]

_VARIABLE: Final = "NOTIFY_SOCKET"


class Notifier:
    """Sends messages to the service manager that started this process; does nothing without one.

    Reads and removes ``NOTIFY_SOCKET``, so that processes started by handlers cannot speak for the broker.
    """

    def __init__(self) -> None:
        self._address = os.environ.pop(_VARIABLE, None)

    def environment(self) -> dict[str, str]:
        """The variable that a process which continues in place of this one needs, to report as well."""
        return {_VARIABLE: self._address} if self._address else {}

    def ready(self, status: str) -> None:
        """Report that all listeners are bound. May be called again, with another status."""
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        """Report that the broker drains."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _send(self, message: str) -> None:
        address = self._address
        if not address:
            return
        # A leading @ is a name in the abstract namespace of Linux.
        target = "\0" + address[1:] if address.startswith("@") else address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.sendto(message.encode(), target)
        except OSError as error:
            logging.getLogger("mqcore.serve").warning("cannot notify the service manager at %s: %s", address, error)
