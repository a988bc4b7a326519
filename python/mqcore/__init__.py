"""A message broker with a Rust core whose behavior is decided in typed Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqcore import _lazy

if TYPE_CHECKING:
    import mqcore.admin
    import mqcore.app
    import mqcore.authority
    import mqcore.backup
    import mqcore.errors
    import mqcore.extensions
    import mqcore.jobs
    import mqcore.journal
    import mqcore.micromessage
    import mqcore.notebook
    import mqcore.ratelimit
    import mqcore.replay
    import mqcore.spark
    import mqcore.sync
    import mqcore.testing
    import mqcore.throttr  # noqa: F401 (all of these bind the name `mqcore`)
    from mqcore._core import (
        Acknowledgement,
        ChannelView,
        ClientView,
        Decision,
        Decisions,
        Delivery,
        Message,
        MessageBatch,
        MessageColumn,
        NodeFrame,
        NodeView,
        QueueView,
        __version__,
    )
    from mqcore.app import AckPolicy, App, Depends, Group, Retry
    from mqcore.backoff import Backoff
    from mqcore.broker import Broker
    from mqcore.client import Client, ClientOptions, Delivered, connect
    from mqcore.config import (
        Binding,
        BrokerConfig,
        ChannelDeclaration,
        ChannelOptions,
        ClusterConfig,
        Durability,
        Interaction,
        NodeConfig,
        NodeFilter,
        NodeRule,
        QueueDeclaration,
        QueueOptions,
        QueueStatus,
        RouteMethod,
        RouterOptions,
        UpstreamConfig,
    )
    from mqcore.errors import MqcoreError
    from mqcore.handlers import DeliveryHandler, PutBack, SendAck
    from mqcore.observing import Authenticator, EventHandler
    from mqcore.routing import BindingHandler, Router
    from mqcore.tls import Listener, ListenerTLS, TLSConfig

__all__ = [
    "AckPolicy",
    "Acknowledgement",
    "App",
    "Authenticator",
    "Backoff",
    "Binding",
    "BindingHandler",
    "Broker",
    "BrokerConfig",
    "ChannelDeclaration",
    "ChannelOptions",
    "ChannelView",
    "Client",
    "ClientOptions",
    "ClientView",
    "ClusterConfig",
    "Decision",
    "Decisions",
    "Delivered",
    "Delivery",
    "DeliveryHandler",
    "Depends",
    "Durability",
    "EventHandler",
    "Group",
    "Interaction",
    "Listener",
    "ListenerTLS",
    "Message",
    "MessageBatch",
    "MessageColumn",
    "MqcoreError",
    "NodeConfig",
    "NodeFilter",
    "NodeFrame",
    "NodeRule",
    "NodeView",
    "PutBack",
    "QueueDeclaration",
    "QueueOptions",
    "QueueStatus",
    "QueueView",
    "Retry",
    "RouteMethod",
    "Router",
    "RouterOptions",
    "SendAck",
    "TLSConfig",
    "UpstreamConfig",
    "__version__",
    "connect",
]

# Names are imported when they are first used, so that `mqcore --help` loads neither the extension module nor
# anything of the network. A test holds this list and the imports above together.
_MODULES = {
    "mqcore._core": (
        "Acknowledgement",
        "ChannelView",
        "ClientView",
        "Decision",
        "Decisions",
        "Delivery",
        "Message",
        "MessageBatch",
        "MessageColumn",
        "NodeFrame",
        "NodeView",
        "QueueView",
        "__version__",
    ),
    "mqcore.app": ("AckPolicy", "App", "Depends", "Group", "Retry"),
    "mqcore.backoff": ("Backoff",),
    "mqcore.broker": ("Broker",),
    "mqcore.client": ("Client", "ClientOptions", "Delivered", "connect"),
    "mqcore.config": (
        "Binding",
        "BrokerConfig",
        "ChannelDeclaration",
        "ChannelOptions",
        "Durability",
        "Interaction",
        "UpstreamConfig",
        "ClusterConfig",
        "NodeConfig",
        "NodeFilter",
        "NodeRule",
        "QueueDeclaration",
        "QueueOptions",
        "QueueStatus",
        "RouteMethod",
        "RouterOptions",
    ),
    "mqcore.errors": ("MqcoreError",),
    "mqcore.handlers": ("DeliveryHandler", "PutBack", "SendAck"),
    "mqcore.observing": ("Authenticator", "EventHandler"),
    "mqcore.routing": ("BindingHandler", "Router"),
    "mqcore.tls": ("Listener", "ListenerTLS", "TLSConfig"),
}
_SUBMODULES = (
    "admin",
    "app",
    "authority",
    "backup",
    "errors",
    "extensions",
    "jobs",
    "journal",
    "micromessage",
    "notebook",
    "ratelimit",
    "replay",
    "spark",
    "sync",
    "testing",
    "throttr",
)
_find = _lazy.importer(globals(), _MODULES)


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
