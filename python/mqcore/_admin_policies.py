"""Policies on the admin side: options of all queues that match a pattern. `mqcore.admin` has this as its own."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqcore._http import DEFAULT_URL, REFUSALS, AdminClient, reading
from mqcore._option_table import QUEUE_OPTIONS
from mqcore.config import Duration, QueueOptions, seconds

if TYPE_CHECKING:
    from mqcore.tls import TLSConfig

__all__ = ["Policy", "PolicyResult", "policies", "remove_policy", "set_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Options for all queues whose addresses match a pattern."""

    name: str
    """Its name, unique in the broker."""
    pattern: str
    """The address of a queue, or the beginning of addresses with ``*`` behind it: ``orders/1``, ``orders/*``, ``*``."""
    priority: int
    """Of several policies for a queue, that with the highest priority sets an option; of equals, the last by name."""
    options: Mapping[str, Any]
    """The options that it sets, by the names of `QueueOptions`. Durations are seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """The effect of a policy on existing queues."""

    changed: int
    """Number of queues that have its options now."""
    rejected: Mapping[str, str]
    """Queues that cannot have its options, each with the reason: the first 20 of each shard."""
    rejected_total: int
    """Number of all queues that cannot have its options."""


def policies(
    url: str = DEFAULT_URL, *, token: str | None = None, timeout: Duration = 15.0, tls: TLSConfig | None = None
) -> tuple[Policy, ...]:
    """Return the policies of the broker with this admin side, in the order in which they apply.

    The arguments and the exceptions are those of `errors`.
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", "/policies")
    with reading("its policies", url):
        return tuple(Policy(**policy) for policy in content["policies"])


def set_policy(
    url: str,
    name: str,
    pattern: str,
    options: QueueOptions,
    *,
    priority: int = 0,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> PolicyResult:
    """Set options of all queues that match `pattern`: of those that exist now, and of others when they are created.

    It replaces the policy with this `name`, if there is one. Options that it does not set are not affected. The options
    of a policy replace those that the creator of a queue asks for. Later changes of a single queue stay until a policy
    of it is set again. A policy cannot set the status ``stopped`` or ``cache``, which erases messages. When the call
    returns, the policy and the changed queues are durable.

    Raises `BadRequest` for a malformed pattern, an unknown option or delivery handler, and a policy without options,
    `NotFound` if the dead-letter queue does not exist, `LimitExceeded` if there are 1,000 policies, `Unauthorized`
    without a `token` that may administer policies and publish to the dead-letter queue, and what `errors` raises.

    ::

        result = set_policy(url, "logs", "logs/*", QueueOptions(message_limit=100_000), token=token)
        print(result.changed, "queues changed")
    """
    content = {"pattern": pattern, "priority": priority, "options": _values(options)}
    client = AdminClient(url, token=token, timeout=timeout, tls=tls)
    answer = client.ask("POST", _path(name), body=json.dumps(content).encode(), rejections=REFUSALS)
    with reading("the effect of a policy", url):
        rejected = {str(queue["queue"]): str(queue["why"]) for queue in answer["rejected"]}
        return PolicyResult(
            changed=int(answer["changed"]), rejected=rejected, rejected_total=int(answer["rejected_total"])
        )


def remove_policy(
    url: str, name: str, *, token: str | None = None, timeout: Duration = 60.0, tls: TLSConfig | None = None
) -> None:
    """Remove a policy. Its queues keep their options.

    Raises `NotFound` if there is none with this name, and what `set_policy` raises.
    """
    AdminClient(url, token=token, timeout=timeout, tls=tls).ask("DELETE", _path(name), rejections=REFUSALS)


def _path(name: str) -> str:
    return f"/policies/{urllib.parse.quote(name, safe='')}"


def _values(options: QueueOptions) -> dict[str, Any]:
    """The options that are set, as JSON has them."""
    values: dict[str, Any] = {}
    for option in QUEUE_OPTIONS:
        value = getattr(options, option.name)
        if value is not None:
            values[option.name] = seconds(value) if option.kind in {"duration", "delay"} else value
    return values
