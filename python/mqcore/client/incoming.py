"""A received message, and its body as the type that the program asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mqcore import bodies
from mqcore.notebook import message_html

if TYPE_CHECKING:
    from mqcore import _core
    from mqcore._tracing import Spanned

__all__ = ["Incoming"]

_T_co = TypeVar("_T_co", covariant=True)


class _Undecoded:
    """Marks a body that was not decoded yet."""


_UNDECODED: Final = _Undecoded()


class Incoming(Generic[_T_co]):
    """A received message. Its body is decoded at the first access."""

    __slots__ = ("_body", "_core", "_span", "_wanted")

    def __init__(self, core: _core.Received, wanted: type[_T_co]) -> None:
        self._core = core
        self._wanted = wanted
        self._body: _T_co | _Undecoded = _UNDECODED
        self._span: Spanned | None = None

    @property
    def id(self) -> str:
        """Its id."""
        return self._core.id

    @property
    def source(self) -> str | None:
        """The id of the client that sent it; ``None`` if its queue hides names."""
        return self._core.source

    @property
    def target(self) -> str:
        """The channel; of a direct message its target."""
        return self._core.target

    @property
    def content_type(self) -> int:
        """The id of the queue, the status of a response, or the number that the sender of a direct message chose."""
        return self._core.content_type

    @property
    def headers(self) -> _core.Headers:
        """Its headers. Keys compare without regard to case."""
        return self._core.headers

    @property
    def high_priority(self) -> bool:
        """Whether it goes before all messages without high priority."""
        return self._core.high_priority

    @property
    def raw(self) -> bytes:
        """The bytes of its body."""
        return self._core.body

    @property
    def body(self) -> _T_co:
        """Its body as the requested type. Raises `BodyError` if it cannot be decoded as that."""
        if isinstance(self._body, _Undecoded):
            self._body = bodies.decode(self._core.body, self._wanted)
        return self._body

    def __len__(self) -> int:
        """The bytes of its body."""
        return len(self._core)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} id={self.id!r} source={self.source!r} body={len(self)} bytes>"

    def _notebook_row(self) -> dict[str, object]:
        return {
            "id": self.id,
            "source": self.source,
            "target": self.target,
            "content_type": self.content_type,
            "high_priority": self.high_priority,
            "body": self.raw,
        }

    def _repr_html_(self) -> str:
        fields = {name: value for name, value in self._notebook_row().items() if name != "body"}
        return message_html(type(self).__name__, fields, self.headers.items(), self.raw)
