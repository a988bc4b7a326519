"""What the program's exit codes mean, and which error leaves with which. The table of docs/cli.md."""

from __future__ import annotations

from enum import IntEnum

from mqcore import errors

__all__ = ["ExitCode", "exit_code"]


class ExitCode(IntEnum):
    """How the program ends."""

    DONE = 0
    REFUSED = 1
    """The broker said no."""
    USAGE = 2
    """Wrong usage, or a configuration that cannot work."""
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    UNREACHABLE = 5
    """No broker there, or no answer in time."""
    DAMAGED = 6
    """What arrived is not what the protocol allows, or what was saved is not what was written."""
    BUSY = 7
    """Busy or at a limit: try later."""
    DEFECT = 70
    """A mistake in mqcore itself."""
    INTERRUPTED = 130
    """Ended by Ctrl-C."""
    TERMINATED = 143
    """Ended by SIGTERM."""


# The first line that fits counts, so leaves stand before their branches.
_CODES: tuple[tuple[type[errors.MqcoreError], ExitCode], ...] = (
    (errors.NotFound, ExitCode.NOT_FOUND),
    (errors.Unauthorized, ExitCode.NOT_ALLOWED),
    (errors.AuthFailed, ExitCode.NOT_ALLOWED),
    (errors.Busy, ExitCode.BUSY),
    (errors.LimitExceeded, ExitCode.BUSY),
    (errors.RateLimited, ExitCode.BUSY),
    (errors.DataDirBusy, ExitCode.BUSY),
    (errors.DataDirFull, ExitCode.BUSY),
    (errors.DataDirDamaged, ExitCode.DAMAGED),
    (errors.DataDirMissing, ExitCode.NOT_FOUND),
    (errors.DataDirError, ExitCode.USAGE),
    (errors.AuthorityMissing, ExitCode.NOT_FOUND),
    (errors.AuthorityError, ExitCode.USAGE),
    (errors.ConfigError, ExitCode.USAGE),
    (errors.NotSupported, ExitCode.USAGE),
    (errors.ListenFailed, ExitCode.USAGE),
    (errors.TransportError, ExitCode.UNREACHABLE),
    (errors.HandshakeError, ExitCode.UNREACHABLE),
    (errors.ConfirmTimeout, ExitCode.UNREACHABLE),
    (errors.RequestTimeout, ExitCode.UNREACHABLE),
    (errors.ProtocolError, ExitCode.DAMAGED),
    (errors.BodyError, ExitCode.DAMAGED),
    (errors.JobRefused, ExitCode.NOT_ALLOWED),
    (errors.MqcoreError, ExitCode.REFUSED),
)


def exit_code(error: errors.MqcoreError) -> ExitCode:
    """Return the code with which the program ends because of `error`."""
    return next(code for kind, code in _CODES if isinstance(error, kind))
