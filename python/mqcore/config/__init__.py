"""Configuration of a broker, its channels and its queues, from code, files and environment variables.

Durations are seconds as a number, a :class:`datetime.timedelta`, or text with a unit: ``"250ms"``, ``"30s"``,
``"5m"``, ``"1h"``, ``"1d"``. Options that are ``None`` are inherited: a queue's from its channel, a channel's
from the broker.
"""

from mqcore.config.authority import AuthorityOptions, TokenOptions, UserOptions
from mqcore.config.broker import BrokerConfig
from mqcore.config.duration import Duration, seconds
from mqcore.config.nodes import NodeConfig, NodeFilter, NodeRule, UpstreamConfig
from mqcore.config.queues import (
    ChannelDeclaration,
    ChannelOptions,
    Durability,
    QueueDeclaration,
    QueueOptions,
    QueueStatus,
)
from mqcore.config.routing import Binding, Interaction, RouteMethod, RouterOptions

__all__ = [
    "AuthorityOptions",
    "Binding",
    "BrokerConfig",
    "ChannelDeclaration",
    "ChannelOptions",
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
