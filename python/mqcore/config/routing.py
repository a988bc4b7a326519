"""Routers and their bindings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mqcore.config.convert import check, count, same_word, text
from mqcore.errors import ConfigError

__all__ = ["Binding", "Interaction", "RouteMethod", "RouterOptions"]


class RouteMethod(StrEnum):
    """Which bindings of a router, or which clients of a binding, get a message."""

    DISTRIBUTE = "distribute"
    """All of them."""
    ROUND_ROBIN = "round-robin"
    """One at a time in turn; one that does not accept the message is skipped."""
    ONLY_FIRST = "only-first"
    """The one with the highest priority; the next one if it does not accept the message."""

    @classmethod
    def _missing_(cls, value: object) -> RouteMethod | None:
        """Take the other spellings in use: ``OnlyFirst``, ``round_robin``."""
        return same_word(cls, value)


class Interaction(StrEnum):
    """The answer that a binding requests from its receiver, and so the peer that answers the producer."""

    NONE = "none"
    """None: the copy of the receiver has a new id, and the router answers."""
    ACKNOWLEDGE = "acknowledge"
    """An acknowledgement, which the producer gets."""
    RESPONSE = "response"
    """A response, which the producer gets."""

    @classmethod
    def _missing_(cls, value: object) -> Interaction | None:
        return same_word(cls, value)


@dataclass(frozen=True, slots=True)
class Binding:
    """A rule of a router: a target for messages.

    Raises `ConfigError` for invalid values. A broker checks the target when it gets the binding.
    """

    target: str
    """A queue (``orders/1001``), a topic (``@topic:orders.new``), clients (``@client:ID``, ``@name:NAME``,
    ``@type:TYPE``), or a binding written in Python (``@handler:KEY``)."""
    name: str | None = None
    """Unique within its router. Default the target."""
    priority: int = field(default=0, kw_only=True)
    """Higher comes first; may be negative. Default 0."""
    interaction: Interaction = field(default=Interaction.NONE, kw_only=True)
    """The answer that the receiver must send. Default none."""
    content_type: int | None = field(default=None, kw_only=True)
    """New content type of the message, up to 65535, unless it goes to a queue. Default unchanged."""
    method: RouteMethod = field(default=RouteMethod.DISTRIBUTE, kw_only=True)
    """Which clients of a name or type get the message. Default all."""

    def __post_init__(self) -> None:
        for name, convert, wanted in (
            ("target", text, "text"),
            ("name", lambda value: None if value is None else text(value), "text"),
            ("priority", int, "a whole number"),
            ("interaction", Interaction, "one of " + ", ".join(Interaction)),
            ("content_type", lambda value: None if value is None else count(value), "a number up to 65535"),
            ("method", RouteMethod, "one of " + ", ".join(RouteMethod)),
        ):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, convert(value))
            except (TypeError, ValueError):
                raise ConfigError(f"{name} of a binding cannot be {value!r}; it is {wanted}") from None


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """A router with its bindings, as a program or a configuration file declares it."""

    name: str
    """Its name, with the rules of channel names; case matters."""
    method: RouteMethod = RouteMethod.DISTRIBUTE
    """Which bindings get a message. Default all."""
    bindings: tuple[Binding, ...] = ()
    """Its bindings. Default none."""
    enabled: bool = field(default=True, kw_only=True)
    """Whether it accepts messages. Default yes."""

    def __post_init__(self) -> None:
        check(self)
