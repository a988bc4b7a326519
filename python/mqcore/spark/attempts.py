"""Repeats requests to a broker that restarts or is busy."""

from __future__ import annotations

import logging
import ssl
import time
from typing import Final

from mqcore import errors
from mqcore._http import GatewayAnswer
from mqcore.backoff import Backoff

__all__ = ["PASSING", "Attempts"]

PASSING: Final = (
    errors.TransportError,
    errors.RequestTimeout,
    errors.Busy,
    errors.RateLimited,
    GatewayAnswer,
)
"""Errors after which the same request can succeed."""

_PAUSES: Final = Backoff(first=0.1, max=5.0)
_LOG: Final = logging.getLogger("mqcore.spark")


class Attempts:
    """The attempts at one request: at most `retries` after the first one, with pauses from 0.1 s to 5 s."""

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._failed = 0

    def succeeded(self) -> None:
        """Count from the beginning again, because the request has got further."""
        self._failed = 0

    def failed(self, error: errors.MqcoreError) -> None:
        """Wait before the next attempt. Raises `error` if there is none, or if the same error would follow."""
        self._failed += 1
        if self._failed > self._retries or _is_certificate_error(error):
            raise error
        if self._failed == 1:
            _LOG.warning("%s; up to %d attempts follow", error, self._retries)
        time.sleep(_PAUSES.wait(self._failed))


def _is_certificate_error(error: BaseException | None) -> bool:
    """Whether the certificate of the broker was refused, somewhere in the causes of an error."""
    while error is not None:
        causes = (error, getattr(error, "reason", None), *error.args)
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
            return True
        error = error.__cause__ or error.__context__
    return False
