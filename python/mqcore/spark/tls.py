"""TLS of the admin side: files that every executor sees, or PEM that travels with the query."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mqcore import errors

__all__ = ["tls_context"]

_PEM: Final = "-----BEGIN "


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the TLS settings of a client, or `None` if nothing is given. Each value is a path or PEM as text.

    `ca`: authorities to trust instead of the system's. `cert`: the client's certificate, followed by its chain. `key`:
    its private key, by default in the same file.

    Raises `ConfigError` for what cannot be read, and names the option.
    """
    if ca is None and cert is None:
        return None
    with _named(ca=ca):
        context = ssl.create_default_context(
            cadata=ca if _is_pem(ca) else None, cafile=None if ca is None or _is_pem(ca) else ca
        )
    if cert is not None:
        with _named(cert=cert, key=key), _file(cert) as cert_file, _file(key) as key_file:
            context.load_cert_chain(cert_file or "", key_file)
    return context


def _is_pem(text: str | None) -> bool:
    return text is not None and _PEM in text


@contextmanager
def _file(text: str | None) -> Iterator[str | None]:
    """Make a file of PEM, because OpenSSL reads certificates with keys from files only. It exists within the block."""
    if text is None or not _is_pem(text):
        yield text
        return
    handle, path = tempfile.mkstemp(prefix="mqcore-", suffix=".pem")  # Only this user can read it.
    try:
        with os.fdopen(handle, "w", encoding="ascii", errors="replace") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)


@contextmanager
def _named(**options: str | None) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        given = (f"{name} ({'PEM' if _is_pem(value) else value})" for name, value in options.items() if value)
        raise errors.ConfigError(
            f"cannot load the TLS option {' and '.join(given)}: {error}. A path must be readable for the driver and "
            "every executor; PEM as text is sent to them"
        ) from error
