"""Message bodies: from Python values to bytes and back."""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any, TypedDict

import msgspec
import pytest

from mqcore import bodies, errors


@dataclasses.dataclass
class Item:
    """Part of an order."""

    sku: str
    qty: int


@dataclasses.dataclass
class Order:
    """A dataclass with a dataclass in it."""

    id: int
    items: list[Item]


class Struct(msgspec.Struct):
    """A msgspec model."""

    id: int


class Record(TypedDict):
    """A typed dict."""

    id: int


@pytest.mark.parametrize("body", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
def test_bytes_pass_unchanged(body: Any) -> None:
    assert bodies.encode(body) == b"\x00\xff"
    assert bodies.decode(b"\x00\xff", bytes) == b"\x00\xff"


def test_text_is_utf_8() -> None:
    assert bodies.encode("gül") == "gül".encode()
    assert bodies.decode("gül".encode(), str) == "gül"
    with pytest.raises(errors.BodyError) as caught:
        bodies.decode(b"\xff", str)
    assert (caught.value.raw, caught.value.wanted) == (b"\xff", str)


@pytest.mark.parametrize(
    ("value", "wanted", "data"),
    [
        (Order(1, [Item("A", 2)]), Order, b'{"id":1,"items":[{"sku":"A","qty":2}]}'),
        (Struct(1), Struct, b'{"id":1}'),
        ({"id": 1}, Record, b'{"id":1}'),
        ({"a": [1, None, True]}, dict[str, list[Any]], b'{"a":[1,null,true]}'),
        ([1, 2], list[int], b"[1,2]"),
        (1.5, float, b"1.5"),
        (None, type(None), b"null"),
    ],
)
def test_everything_else_is_json(value: object, wanted: Any, data: bytes) -> None:
    assert bodies.encode(value) == data
    assert bodies.decode(data, wanted) == value


def test_a_body_that_is_something_else_tells_where() -> None:
    raw = b'{"id":1,"items":[{"sku":"A","qty":"two"}]}'
    with pytest.raises(errors.BodyError, match="no Order") as caught:
        bodies.decode(raw, Order)
    assert (caught.value.raw, caught.value.wanted, caught.value.path) == (raw, Order, "$.items[0].qty")
    assert isinstance(caught.value, ValueError)
    with pytest.raises(errors.BodyError):
        bodies.decode(b"not json", Order)


def raising(error: Exception) -> type[object]:
    """Return a type of bodies that raises `error` when it checks its values."""

    class Checked(msgspec.Struct):
        id: int

        def __post_init__(self) -> None:
            raise error

    return Checked


class Silent(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    ("raw", "wanted", "text"),
    [
        (b'{"sku":"\xff","qty":1}', Item, "the body is no Item: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, list, "the body is no list: .* while deserializing"),
        (b'{"id":1}', raising(KeyError("sku")), "Checked: KeyError: 'sku'"),
        (b'{"id":1}', raising(RuntimeError("no rates")), "Checked: RuntimeError: no rates"),
        (b'{"id":1}', raising(ValueError("too small")), "Checked: too small"),
        (b'{"id":1}', raising(Silent()), "Checked: Silent: <Silent without text>"),
    ],
)
def test_every_failure_to_decode_is_a_body_error(raw: bytes, wanted: Any, text: str) -> None:
    with pytest.raises(errors.BodyError, match=text) as caught:
        bodies.decode(raw, wanted)
    assert (caught.value.raw, caught.value.wanted) == (raw, wanted)


def test_body_without_json_form_is_rejected() -> None:
    with pytest.raises(errors.BodyError, match="object"):
        bodies.encode(object())


def test_pydantic_model_is_recognized_once_pydantic_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    # pydantic is not a dependency; this class has the parts that mqcore uses.
    class BaseModel:
        def __init__(self, raw: str) -> None:
            self.raw = raw

        def model_dump_json(self) -> str:
            return self.raw

        @classmethod
        def model_validate_json(cls, raw: bytes) -> BaseModel:
            if raw == b"bad":
                raise Invalid
            if raw == b"unknown":
                raise KeyError("sku")
            return cls(raw.decode())

    class Invalid(ValueError):
        def errors(self) -> list[dict[str, Any]]:
            return [{"loc": ("items", 0, "qty")}]

    module = types.ModuleType("pydantic")
    module.BaseModel = BaseModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pydantic", module)

    class Model(BaseModel):
        pass

    assert bodies.encode(Model("{}")) == b"{}"
    assert bodies.decode(b"{}", Model).raw == "{}"
    with pytest.raises(errors.BodyError) as caught:
        bodies.decode(b"bad", Model)
    assert caught.value.path == "$.items[0].qty"
    with pytest.raises(errors.BodyError, match="Model: KeyError: 'sku'"):
        bodies.decode(b"unknown", Model)
