"""Users and tokens of a running broker, over its admin side. `mqcore.admin` has this as its own."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mqcore._http import DEFAULT_URL, REFUSALS, AdminClient, reading
from mqcore.config import Duration, seconds

if TYPE_CHECKING:
    from mqcore.tls import TLSConfig

__all__ = [
    "CredentialRestrictions",
    "NewToken",
    "TokenState",
    "UserState",
    "add_user",
    "create_token",
    "remove_user",
    "revoke_token",
    "set_password",
    "tokens",
    "users",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRestrictions:
    """Conditions on the use of credentials. An empty tuple restricts nothing, else one of its entries must match."""

    client_ids: tuple[str, ...] = ()
    """Patterns of client ids, such as ``worker-*``."""
    client_names: tuple[str, ...] = ()
    """Patterns of client names."""
    client_types: tuple[str, ...] = ()
    """Patterns of client types."""
    addresses: tuple[str, ...] = ()
    """Addresses and networks of clients, such as ``10.0.0.0/8``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserState:
    """A user of a broker."""

    name: str
    """Its name, unique in the broker."""
    has_password: bool
    """Whether it can log in with a password."""
    certificate: str | None
    """Name in a client certificate that replaces the password: ``cn:worker-1``. ``None``: it needs a password."""
    allow: tuple[str, ...]
    """Its rules, such as ``push,pull:orders/*``."""
    restrict: CredentialRestrictions
    """Conditions on its logins."""
    configured: bool
    """Whether it is in the configuration of the broker, and cannot be changed here."""
    connections: int
    """Its open connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenState:
    """An access token of a broker, without its secret."""

    id: str
    """Its id, for `revoke_token`."""
    name: str
    """Its name, which several tokens may have."""
    allow: tuple[str, ...]
    """Its rules, such as ``push,pull:orders/*``."""
    restrict: CredentialRestrictions
    """Conditions on its use."""
    expires_ms: int | None
    """Time of expiry in Unix milliseconds. ``None``: never."""
    configured: bool
    """Whether it is in the configuration of the broker, and cannot be revoked here."""
    connections: int
    """Its open connections."""

    @property
    def expires(self) -> datetime | None:
        """The time of expiry in UTC. ``None``: never."""
        return None if self.expires_ms is None else datetime.fromtimestamp(self.expires_ms / 1000, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token that was just created."""

    id: str
    """Its id, for `revoke_token`."""
    name: str
    """Its name."""
    token: str = field(repr=False)
    """The secret, ``mqt_...``. The broker keeps its hash only."""


def users(
    url: str = DEFAULT_URL, *, token: str | None = None, timeout: Duration = 15.0, tls: TLSConfig | None = None
) -> tuple[UserState, ...]:
    """Return the users of the broker with this admin side by name, those of its configuration included.

    Once there are users, it needs a `token` with the rule ``administer:/users``. The other arguments and the exceptions
    are those of `errors`.
    """
    content = _listed(url, token, timeout, tls)
    with reading("its users", url):
        return tuple(UserState(**_plain(user)) for user in content["users"])


def tokens(
    url: str = DEFAULT_URL, *, token: str | None = None, timeout: Duration = 15.0, tls: TLSConfig | None = None
) -> tuple[TokenState, ...]:
    """Return the access tokens of the broker with this admin side by name, without their secrets.

    The arguments and the exceptions are those of `users`.
    """
    content = _listed(url, token, timeout, tls)
    with reading("its tokens", url):
        return tuple(TokenState(**_plain(known)) for known in content["tokens"])


def add_user(
    url: str,
    name: str,
    *,
    password: str | None = None,
    certificate: str | None = None,
    allow: Iterable[str] = (),
    restrict: CredentialRestrictions | None = None,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> None:
    """Add a user. Without a `password`, it logs in by `certificate` only.

    `allow` are rules such as ``push,pull:orders/*``. The caller needs a `token` with the rule ``administer:/users/*``
    that allows everything that the user may do. When the call returns, the
    user is on disk, in a cluster on the disks of a majority of its nodes, and can log in.

    Raises `AlreadyExists`, `BadRequest` for a malformed name, rule or restriction, and for a password shorter than 8 or
    longer than 1,024 bytes, `LimitExceeded` if there are 10,000 users, `Unacceptable` if the broker has no file of
    users, `Unauthorized`, `Nacked` if the file cannot be written, and what `errors` raises.

    ::

        add_user(url, "ann", password=secret, allow=["push:orders/*", "inspect"], token=token)
    """
    wanted = {"allow": list(allow), "restrict": _restrictions(restrict)}
    wanted |= {} if password is None else {"password": password}
    wanted |= {} if certificate is None else {"certificate": certificate}
    _send(AdminClient(url, token=token, timeout=timeout, tls=tls), "POST", _user(name), wanted)


def set_password(
    url: str,
    name: str,
    password: str,
    *,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> None:
    """Set the password of a user, and close the connections that used the old one.

    Raises `NotFound` if there is no such user, `Unacceptable` if it is in the configuration of the broker, and what
    `add_user` raises.
    """
    client = AdminClient(url, token=token, timeout=timeout, tls=tls)
    _send(client, "POST", f"{_user(name)}/password", {"password": password})


def remove_user(
    url: str, name: str, *, token: str | None = None, timeout: Duration = 60.0, tls: TLSConfig | None = None
) -> None:
    """Remove a user, and close its connections. Raises what `set_password` raises."""
    _send(AdminClient(url, token=token, timeout=timeout, tls=tls), "DELETE", _user(name), None)


def create_token(
    url: str,
    name: str,
    *,
    allow: Iterable[str] = (),
    expires: Duration | None = None,
    restrict: CredentialRestrictions | None = None,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> NewToken:
    """Create an access token with the rules `allow`, which is valid for `expires`, or until it is revoked.

    The caller needs a `token` with the rule ``administer:/tokens`` that allows everything that the new one allows.
    Raises what `add_user` raises, apart from `AlreadyExists`.

    ::

        deploy = create_token(url, "deploy", allow=["push:orders/*"], expires="90d", token=token)
        print(deploy.token)
    """
    until = None if expires is None else int((time.time() + seconds(expires)) * 1000)
    wanted = {"name": name, "allow": list(allow), "expires_ms": until, "restrict": _restrictions(restrict)}
    answer = _send(AdminClient(url, token=token, timeout=timeout, tls=tls), "POST", "/tokens", wanted)
    with reading("a new token", url):
        return NewToken(**answer)


def revoke_token(
    url: str, token_id: str, *, token: str | None = None, timeout: Duration = 60.0, tls: TLSConfig | None = None
) -> None:
    """Revoke the token with this id, and close its connections.

    Raises `NotFound` if there is no such token, and what `set_password` raises.
    """
    path = f"/tokens/{urllib.parse.quote(token_id, safe='')}"
    _send(AdminClient(url, token=token, timeout=timeout, tls=tls), "DELETE", path, None)


def _listed(url: str, token: str | None, timeout: Duration, tls: TLSConfig | None) -> dict[str, Any]:
    return AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", "/users")


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    restrict = {name: tuple(entries) for name, entries in record["restrict"].items()}
    return {**record, "allow": tuple(record["allow"]), "restrict": CredentialRestrictions(**restrict)}


def _restrictions(restrict: CredentialRestrictions | None) -> dict[str, list[str]]:
    return {name: list(entries) for name, entries in asdict(restrict or CredentialRestrictions()).items()}


def _user(name: str) -> str:
    return f"/users/{urllib.parse.quote(name, safe='')}"


def _send(client: AdminClient, method: str, path: str, content: dict[str, Any] | None) -> dict[str, Any]:
    body = None if content is None else json.dumps(content).encode()
    return client.ask(method, path, body=body, rejections=REFUSALS)
