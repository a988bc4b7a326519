"""Makes kombu know the URL schemes ``mqcore`` and ``mqcores``.

kombu has no entry points for transports, but it loads those of the group ``kombu.serializers`` whenever it is imported.
Loading `NAMES` adds the transport; it registers a content type without a codec, which no message uses.
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

__all__ = ["NAMES"]

TRANSPORT_ALIASES.setdefault("mqcore", "mqcore.celery.transport:Transport")
TRANSPORT_ALIASES.setdefault("mqcores", "mqcore.celery.transport:SecureTransport")

NAMES: Final = (None, None, "application/x-mqcore")
"""Encoder, decoder and content type, as kombu expects them of a serializer."""
