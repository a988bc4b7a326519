"""Users, tokens, and the options of authentication."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqcore.config.convert import check

__all__ = ["AuthorityOptions", "TokenOptions", "UserOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptions:
    """A user that the configuration names. Those of ``mqcore user add`` are kept elsewhere and need not be here."""

    name: str
    """Unique among users."""
    allow: tuple[str, ...] = ()
    """Rules: ``push,pull:orders/*``, ``*``. Default nothing."""
    password_hash: str | None = field(default=None, repr=False)
    """What ``mqcore user hash`` prints. Default none: no password is the right one."""
    certificate: str | None = None
    """A name in a client certificate that is as good as the password: ``cn:worker-1``. Default none."""
    client_ids: tuple[str, ...] = ()
    """Patterns of client ids that the peer may take. Default all."""
    client_names: tuple[str, ...] = ()
    """Patterns of client names. Default all."""
    client_types: tuple[str, ...] = ()
    """Patterns of client types. Default all."""
    addresses: tuple[str, ...] = ()
    """Where it may come from: ``10.0.0.0/8``. Default everywhere."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """A token that the configuration names, without its secret."""

    id: str
    """The part of the token between the first two underscores."""
    name: str
    """For people."""
    hash: str = field(repr=False)
    """SHA-256 of the part behind the second underscore, hexadecimal."""
    allow: tuple[str, ...] = ()
    """Rules: ``push,pull:orders/*``, ``*``. Default nothing."""
    expires_ms: int | None = None
    """From when on it is worth nothing, Unix milliseconds. Default never."""
    client_ids: tuple[str, ...] = ()
    """Patterns of client ids that the peer may take. Default all."""
    client_names: tuple[str, ...] = ()
    """Patterns of client names. Default all."""
    client_types: tuple[str, ...] = ()
    """Patterns of client types. Default all."""
    addresses: tuple[str, ...] = ()
    """Where it may come from: ``10.0.0.0/8``. Default everywhere."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityOptions:
    """Who may do what, beside users and tokens."""

    anonymous: tuple[str, ...] = ()
    """Rules for peers that show nothing, once there is a user or a token. Default none: they are turned away."""
    store: str | None = None
    """The file of users and tokens that the command line changes. Default ``authority.json`` in the data directory."""
    audit: str | None = None
    """Where audit lines go: a file, ``stderr`` or ``off``. Default ``audit.jsonl`` in the data directory, without one
    standard error."""
    audit_allowed: bool = False
    """Whether what was allowed is written too, where it had to be looked up. Default no."""

    def __post_init__(self) -> None:
        check(self)
