"""Each option has the default that its documentation states."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from datetime import timedelta
from typing import Any

import pytest

import mqcore
from mqcore import config
from mqcore.client import models
from mqcore.client.options import ClientOptions
from mqcore.ratelimit import LocalRateLimiter, RateLimiter

# Options of queues and channels are inherited: their fields are `None`, and the broker has the defaults.
CLASSES = (
    ClientOptions,
    mqcore.Authenticator,
    mqcore.BindingHandler,
    mqcore.EventHandler,
    mqcore.Router,
    config.AuthorityOptions,
    config.Binding,
    config.BrokerConfig,
    config.NodeConfig,
    config.NodeFilter,
    config.RouterOptions,
    config.TokenOptions,
    config.UpstreamConfig,
    config.UserOptions,
)

AMOUNT = re.compile(r"([\d,]+)(?: (ms|s|minutes|days|KiB|MiB|GiB))?")
TIMES = {"ms": 0.001, "s": 1, "minutes": 60, "days": 86400, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
WORDS: dict[str, tuple[Any, ...]] = {
    "yes": (True,),
    "no": (False,),
    "no limit": (None,),
    "never": (None,),
    "nothing": ((),),
    "none": (None, (), config.Interaction.NONE),
    "all": ((), config.RouteMethod.DISTRIBUTE, config.NodeFilter()),
    "``memory``": ("memory",),
}


def stated(text: str) -> tuple[Any, ...] | None:
    """The values that the documentation of an option allows as its default; `None` if it states no plain value."""
    found = re.search(r"\bDefault (.*?)(?:[.;:]\s|[.;:]?$)", " ".join(text.split()))
    if found is None:
        return None
    if amount := AMOUNT.fullmatch(found[1]):
        return (int(amount[1].replace(",", "")) * TIMES.get(amount[2], 1),)
    return WORDS.get(found[1])


def documented(cls: type[Any]) -> dict[str, tuple[Any, ...]]:
    """The options of a class whose documentation states a value."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    values = {}
    for entry, text in zip(tree.body, tree.body[1:], strict=False):
        match entry, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(written))):
                if (value := stated(written)) is not None:
                    values[name] = value
    return values


def default(cls: type[Any], name: str) -> object:
    """The default of an option of a dataclass, or an attribute of another class."""
    if not dataclasses.is_dataclass(cls):
        return getattr(cls, name)
    (entry,) = (entry for entry in dataclasses.fields(cls) if entry.name == name)
    made = entry.default if entry.default_factory is dataclasses.MISSING else entry.default_factory()
    return made.total_seconds() if isinstance(made, timedelta) else made


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_defaults_are_those_that_the_documentation_states(cls: type[Any]) -> None:
    options = documented(cls)
    assert options, "the documentation of no option was understood"
    # `True == 1`, therefore types are compared too.
    wrong = {
        name: (default(cls, name), values)
        for name, values in options.items()
        if not any(
            default(cls, name) == value and isinstance(default(cls, name), bool) == isinstance(value, bool)
            for value in values
        )
    }
    assert wrong == {}


def test_most_options_of_a_broker_and_a_client_state_a_value() -> None:
    assert len(documented(config.BrokerConfig)) >= 55
    assert len(documented(ClientOptions)) >= 12


def test_local_limiter_has_the_documented_limits() -> None:
    parameters = inspect.signature(RateLimiter.local).parameters
    assert "default 16,777,216" in str(RateLimiter.local.__doc__)
    assert parameters["keys_max"].default == 16_777_216
    assert "default 2 GiB" in str(RateLimiter.local.__doc__)
    assert parameters["bytes_max"].default == 2 << 30
    assert isinstance(RateLimiter.local(), LocalRateLimiter)


@pytest.mark.parametrize(
    "cls",
    [
        models.ChannelInformation,
        models.ClientInformation,
        models.Event,
        models.NodeInformation,
        models.QueueInformation,
        models.State,
    ],
)
def test_what_a_server_does_not_send_reads_as_nothing(cls: type[Any]) -> None:
    entries = dataclasses.fields(cls)
    optional = {entry.name for entry in entries if entry.default is not entry.default_factory}
    given = {name: default(cls, name) for name in optional}
    assert given
    # Original servers have no setting for these two, and behave as if they were set.
    positive = {"allow_multiple_queues", "use_message_id"} & optional
    assert {name for name, value in given.items() if value not in (None, 0, "", (), {})} == positive
    assert all(given[name] is True for name in positive)


@pytest.mark.parametrize("secret", ["password_hash", "hash", "token", "password"])
def test_secrets_are_not_in_the_text_of_options(secret: str) -> None:
    made = {
        "password_hash": config.UserOptions(name="ann", password_hash="$secret$"),
        "hash": config.TokenOptions(id="7", name="ann", hash="$secret$"),
        "token": ClientOptions(token="$secret$"),
        "password": ClientOptions(user="ann", password="$secret$"),
    }
    assert "secret" not in repr(made[secret])
    assert "ann" in repr(made[secret]) or secret in {"token", "password"}
