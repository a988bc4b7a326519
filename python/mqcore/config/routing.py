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
    """One after the other; one that does not take it is passed over."""
    ONLY_FIRST = "only-first"
    """The one of the highest priority; the next one if it does not take it."""

    @classmethod
    def _missing_(cls, value: object) -> RouteMethod | None:
        """Take the other spellings in use: ``OnlyFirst``, ``round_robin``."""
        return same_word(cls, value)


class Interaction(StrEnum):
    """What a binding's receiver is asked for, and so who answers the producer."""

    NONE = "none"
    """Nothing: the receiver's copy has an id of its own, and the router answers."""
    ACKNOWLEDGE = "acknowledge"
    """An acknowledgement, which the producer gets."""
    RESPONSE = "response"
    """A response, which the producer gets."""

    @classmethod
    def _missing_(cls, value: object) -> Interaction | None:
        return same_word(cls, value)


@dataclass(frozen=True, slots=True)
class Binding:
    """One rule of a router: where a message may go.

    Raises `ConfigError` for values that cannot be; the target is judged when a broker gets to know it.
    """

    target: str
    """A queue (``orders/1001``), a topic (``@topic:orders.new``), clients (``@client:ID``, ``@name:NAME``,
    ``@type:TYPE``), or a binding written in Python (``@handler:KEY``)."""
    name: str | None = None
    """Unique within its router. Default the target."""
    priority: int = field(default=0, kw_only=True)
    """Higher is sooner; may be negative. Default 0."""
    interaction: Interaction = field(default=Interaction.NONE, kw_only=True)
    """What the receiver is asked for. Default nothing."""
    content_type: int | None = field(default=None, kw_only=True)
    """What the message's content type becomes, up to 65535, unless it goes to a queue. Default it stays."""
    method: RouteMethod = field(default=RouteMethod.DISTRIBUTE, kw_only=True)
    """Which of the clients of a name or a type get the message. Default all."""

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
    """Its name, under the rules of channels' names; compared with respect to case."""
    method: RouteMethod = RouteMethod.DISTRIBUTE
    """Which bindings get a message. Default all."""
    bindings: tuple[Binding, ...] = ()
    """Where messages may go. Default nowhere."""
    enabled: bool = field(default=True, kw_only=True)
    """A router that is not enabled takes nothing. Default yes."""

    def __post_init__(self) -> None:
        check(self)
