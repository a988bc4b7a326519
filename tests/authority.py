"""Certificates for tests, made while they run: an authority, and what it issues, as files."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import trustme

_DAY = datetime.timedelta(days=1)


class Authority:
    """An authority whose files are in `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(exist_ok=True)
        self._ca = trustme.CA()
        self._directory = directory
        self.ca = directory / f"{name}.pem"
        """Its certificate."""
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(
        self,
        file: str = "server.pem",
        *identities: str,
        common_name: str | None = None,
        days: float = 365,
    ) -> Path:
        """Write a certificate and its key into one file; without `identities` it is for this machine.

        `days` from now it expires; a negative number makes one that has expired.
        """
        now = datetime.datetime.now(datetime.UTC)
        certificate = self._ca.issue_cert(
            *(identities or ("localhost", "127.0.0.1")),
            common_name=common_name,
            not_before=now - 400 * _DAY,
            not_after=now + days * _DAY,
        )
        path = self._directory / file
        data = b"".join(part.bytes() for part in certificate.cert_chain_pems) + certificate.private_key_pem.bytes()
        path.write_bytes(data)
        path.chmod(0o600)
        return path

    def context(self, cert: Path | None = None) -> ssl.SSLContext:
        """TLS context of the standard library that trusts this authority and presents `cert`."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if cert is not None:
            context.load_cert_chain(str(cert))
        return context
