"""Configuration of a broker, its channels and its queues, from code, files and environment variables.

Durations are seconds as a number, a :class:`datetime.timedelta`, or text with a unit: ``"250ms"``, ``"30s"``,
``"5m"``, ``"1h"``, ``"1d"``. Options that are ``None`` are inherited: a queue's from its channel, a channel's
from the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqcore._lazy import importer
from mqcore.config.duration import Duration, seconds
from mqcore.config.queues import (
    ChannelDeclaration,
    ChannelOptions,
    Durability,
    QueueDeclaration,
    QueueOptions,
    QueueStatus,
)
from mqcore.config.routing import Binding, Interaction, RouteMethod, RouterOptions

if TYPE_CHECKING:
    from mqcore.config.authority import AuthorityOptions, TokenOptions, UserOptions
    from mqcore.config.broker import BrokerConfig
    from mqcore.config.cluster import ClusterConfig
    from mqcore.config.nodes import NodeConfig, NodeFilter, NodeRule, UpstreamConfig

__all__ = [
    "AuthorityOptions",
    "Binding",
    "BrokerConfig",
    "ChannelDeclaration",
    "ChannelOptions",
    "ClusterConfig",
    "Durability",
    "Duration",
    "Interaction",
    "NodeConfig",
    "NodeFilter",
    "NodeRule",
    "QueueDeclaration",
    "QueueOptions",
    "QueueStatus",
    "RouteMethod",
    "RouterOptions",
    "TokenOptions",
    "UpstreamConfig",
    "UserOptions",
    "seconds",
]

# Imported when they are first used: a client needs none of them, and they take half of the time of the others.
_MODULES = {
    "mqcore.config.authority": ("AuthorityOptions", "TokenOptions", "UserOptions"),
    "mqcore.config.broker": ("BrokerConfig",),
    "mqcore.config.cluster": ("ClusterConfig",),
    "mqcore.config.nodes": ("NodeConfig", "NodeFilter", "NodeRule", "UpstreamConfig"),
}
__getattr__ = importer(globals(), _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
