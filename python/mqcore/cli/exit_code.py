"""Exit codes of the program, and the code of each error. docs/cli.md has the same table."""

from __future__ import annotations

from enum import IntEnum

from mqcore import errors

__all__ = ["ExitCode", "exit_code"]


class ExitCode(IntEnum):
    """Exit codes of `mqcore`."""

    DONE = 0
    REFUSED = 1
    """The broker rejected the request, or the command's condition was not met."""
    USAGE = 2
    """Invalid usage or configuration."""
    NOT_FOUND = 3
    """A named object does not exist."""
    NOT_ALLOWED = 4
    """Authentication failed, or the user lacks the right."""
    UNREACHABLE = 5
    """No connection, or no answer within the timeout."""
    DAMAGED = 6
    """Protocol violation by the peer, or damaged files in the data directory."""
    BUSY = 7
    """The broker is busy or at a limit; retry later."""
    DEFECT = 70
    """Internal error of mqcore."""
    INTERRUPTED = 130
    """Ended by Ctrl-C."""
    TERMINATED = 143
    """Ended by SIGTERM."""


# The first match wins, so subclasses come before their base classes.
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
    (errors.InvalidArgument, ExitCode.USAGE),
    (errors.BadRequest, ExitCode.USAGE),
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
    """Return the exit code for `error`."""
    return next(code for kind, code in _CODES if isinstance(error, kind))
