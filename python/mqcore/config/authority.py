"""Users, tokens, and the options of authentication."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqcore.config.convert import check

__all__ = ["AuthorityOptions", "TokenOptions", "UserOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptions:
    """A user in the configuration. Users of ``mqcore user add`` are in the store and need not be here."""

    name: str
    """Unique among users."""
    allow: tuple[str, ...] = ()
    """Rules: ``push,pull:orders/*``, ``*``. Default nothing."""
    password_hash: str | None = field(default=None, repr=False)
    """The output of ``mqcore user hash``. Default none: the user cannot log in by password."""
    certificate: str | None = None
    """A name in a client certificate that replaces the password: ``cn:worker-1``. Default none."""
    client_ids: tuple[str, ...] = ()
    """Patterns of client ids that the peer may take. Default all."""
    client_names: tuple[str, ...] = ()
    """Patterns of client names. Default all."""
    client_types: tuple[str, ...] = ()
    """Patterns of client types. Default all."""
    addresses: tuple[str, ...] = ()
    """Networks it may connect from: ``10.0.0.0/8``. Default all."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """A token that the configuration names, without its secret."""

    id: str
    """The part of the token between the first two underscores."""
    name: str
    """A name for people."""
    hash: str = field(repr=False)
    """SHA-256 of the part behind the second underscore, hexadecimal."""
    allow: tuple[str, ...] = ()
    """Rules: ``push,pull:orders/*``, ``*``. Default nothing."""
    expires_ms: int | None = None
    """Expiry in Unix milliseconds. Default never."""
    client_ids: tuple[str, ...] = ()
    """Patterns of client ids that the peer may take. Default all."""
    client_names: tuple[str, ...] = ()
    """Patterns of client names. Default all."""
    client_types: tuple[str, ...] = ()
    """Patterns of client types. Default all."""
    addresses: tuple[str, ...] = ()
    """Networks it may connect from: ``10.0.0.0/8``. Default all."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityOptions:
    """Settings of authorization beside users and tokens."""

    anonymous: tuple[str, ...] = ()
    """Rules for peers without credentials, once there is a user or a token. Default none: the broker rejects them."""
    store: str | None = None
    """The file of users and tokens that the command line changes. Default ``authority.json`` in the data directory."""
    audit: str | None = None
    """Destination of audit lines: a file, ``stderr`` or ``off``. Default ``audit.jsonl`` in the data directory, or
    standard error without one."""
    audit_allowed: bool = False
    """Whether allowed actions are written too, if they had to be checked. Default no."""

    def __post_init__(self) -> None:
        check(self)
