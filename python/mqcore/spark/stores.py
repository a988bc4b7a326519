"""How processes reach the object store of an archive: settings of the query, and environments of the processes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["StoreAccess", "store_access"]

_VENDORS: Final = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "abfs": "AZURE_", "abfss": "AZURE_"}
"""Prefixes of environment variables by scheme."""
_CATALOG: Final = "ICEBERG_"
"""Prefix of the variables of a catalog."""
_CREDENTIAL: Final = re.compile("KEY|SECRET|TOKEN|ROLE|PROFILE|CREDENTIAL|CLIENT|SAS|SERVICE_ACCOUNT")
"""Part of the names of variables that belong together."""


class StoreAccess(NamedTuple):
    """How the object store of an archive is reached, besides the environment of each process. May contain secrets."""

    options: tuple[str, ...] = ()
    """Settings ``name=value``, which override all others."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of the driver, for other processes that do not have them."""

    def __repr__(self) -> str:
        names = [text.partition("=")[0] for text in self.options] + [name for name, _ in self.variables]
        return f"StoreAccess({', '.join(names)})"

    @property
    def core(self) -> tuple[list[str], list[tuple[str, str]]]:
        """The form that the core takes.

        Credentials of the driver are left out if this process has some: the key of one would not fit the secret of the
        other.
        """
        own = {
            prefix
            for prefix in (_CATALOG, *_VENDORS.values())
            if any(_is_credential(name, prefix) for name in os.environ)
        }
        kept = [pair for pair in self.variables if not any(_is_credential(pair[0], prefix) for prefix in own)]
        return list(self.options), kept


def store_access(url: str, options: Sequence[str] = ()) -> StoreAccess:
    """Return how this process reaches the store of a URL, for other processes: its options and environment."""
    prefixes = (_CATALOG, _VENDORS.get(url.partition(":")[0].lower(), _CATALOG))
    found = sorted(pair for pair in os.environ.items() if pair[0].startswith(prefixes))
    return StoreAccess(tuple(options), tuple(found))


def _is_credential(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and _CREDENTIAL.search(name) is not None
