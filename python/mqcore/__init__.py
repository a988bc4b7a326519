"""A message broker with a Rust core whose behaviour is decided in typed Python."""

from mqcore._core import Acknowledgement, ClientView, Decision, Delivery, Message, QueueView, __version__
from mqcore.broker import Broker
from mqcore.config import BrokerConfig, ChannelOptions, QueueOptions, QueueStatus
from mqcore.errors import MqcoreError
from mqcore.handlers import DeliveryHandler, PutBack, SendAck

__all__ = [
    "Acknowledgement",
    "Broker",
    "BrokerConfig",
    "ChannelOptions",
    "ClientView",
    "Decision",
    "Delivery",
    "DeliveryHandler",
    "Message",
    "MqcoreError",
    "PutBack",
    "QueueOptions",
    "QueueStatus",
    "QueueView",
    "SendAck",
    "__version__",
]
