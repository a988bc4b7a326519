"""Definitions of a broker: its channels, queues, routers and policies, without messages and without secrets.

::

    with mqcore.sync.connect("tmqp://old:2622") as old, mqcore.sync.connect("tmqp://new:2622") as new:
        wanted = export(old, admin="http://old:2627")
        for change in apply(new, wanted, admin="http://new:2627"):
            print(change.action, change.subject)

Policies belong to the admin side of a broker, so they are part of a document only if `admin` names it. Importing is
idempotent: what exists already in the wanted form stays unchanged. Nothing is ever removed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mqcore import _admin_policies, errors
from mqcore._option_table import CHANNEL_OPTIONS, QUEUE_OPTIONS, Option
from mqcore.client import QueueInformation
from mqcore.config import Binding, ChannelOptions, QueueOptions

if TYPE_CHECKING:
    from mqcore import sync

__all__ = ["SCHEMA", "Change", "apply", "export", "plan"]

SCHEMA: Final = "mqcore.definitions/1"
"""The value of `schema` in every document."""

# The value that removes an option, for kinds of options whose absence has a meaning of its own.
_REMOVING: Final[dict[str, str]] = {"dead letter": "", "rate": "none", "text": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that an import makes, or would make."""

    action: str
    """``create`` or ``change``."""
    subject: str
    """The object that changes, such as ``queue orders/1001``."""
    options: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Options that change, each with its present and its wanted value; for a creation, those that are set."""
    _perform: Callable[[], object] = field(repr=False, compare=False)


def export(client: sync.Client, *, admin: str | None = None, token: str | None = None) -> dict[str, Any]:
    """Return the definitions of the broker that `client` is connected to, as a document that is valid JSON.

    `admin` is the URL of its admin side, such as ``http://127.0.0.1:2627``, which knows the policies, and `token` an
    access token for it; without `admin` the document has no member ``policies``. It has no users, tokens or passwords.
    Needs the right to administer. Raises what the lists of `client` and `mqcore.admin.policies` raise.
    """
    policies = None if admin is None else _admin_policies.policies(admin, token=token)
    channels = client.channels()
    queues = [queue for channel in channels for queue in client.queues(channel.name)]
    return {
        "schema": SCHEMA,
        "channels": [
            {
                "name": channel.name,
                "options": _values(CHANNEL_OPTIONS, channel),
                "queue": _values(QUEUE_OPTIONS, channel),
            }
            for channel in channels
        ],
        "queues": [
            {"queue": f"{queue.channel}/{queue.id}", "options": _values(QUEUE_OPTIONS, queue)} for queue in queues
        ],
        "routers": [
            {
                "name": router.name,
                "method": str(router.method),
                "enabled": router.enabled,
                "bindings": [_binding(binding) for binding in client.bindings(router.name)],
            }
            for router in client.routers()
        ],
    } | ({} if policies is None else {"policies": [_policy(policy) for policy in policies]})


def plan(
    client: sync.Client, wanted: Mapping[str, Any], *, admin: str | None = None, token: str | None = None
) -> list[Change]:
    """Return what importing `wanted` would change. Changes nothing.

    Raises `ConfigError` if `wanted` is not a document of `export`, or has policies and `admin` is missing.
    """
    if wanted.get("schema") != SCHEMA:
        raise errors.ConfigError(f"the document has no definitions: its member schema is not {SCHEMA}")
    try:
        return [
            *_plan_policies(wanted.get("policies", ()), admin, token),
            *_plan_channels(client, wanted["channels"]),
            *_plan_queues(client, wanted["queues"]),
            *_plan_routers(client, wanted["routers"]),
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise errors.ConfigError(f"these definitions lack a member, or it has another type: {error}") from error


def apply(
    client: sync.Client, wanted: Mapping[str, Any], *, admin: str | None = None, token: str | None = None
) -> list[Change]:
    """Make the broker have the definitions `wanted`, and return what was changed.

    A queue may name a dead-letter queue, and a router a queue, that comes later in the document. Raises the first
    error of the broker when no further change succeeds; the others are made by then. Calling it again continues.
    Raises `ConfigError` like `plan`.
    """
    done: list[Change] = []
    changes = plan(client, wanted, admin=admin, token=token)
    _perform_all(changes, done)
    if any(change.subject.startswith("policy ") for change in changes):
        # A policy changes queues that have options of their own in the document.
        _perform_all(plan(client, wanted, admin=admin, token=token), done)
    return done


def _perform_all(changes: list[Change], done: list[Change]) -> None:
    """Make the changes in an order that succeeds, and append each to `done`."""
    waiting = changes
    while waiting:
        failed: list[Change] = []
        reason: errors.MqcoreError | None = None
        for change in waiting:
            try:
                change._perform()
            except errors.OperationError as error:
                failed.append(change)
                reason = reason or error
            else:
                done.append(change)
        if reason is not None and len(failed) == len(waiting):
            raise reason
        waiting = failed


def _values(table: Iterable[Option], information: object) -> dict[str, Any]:
    values = {option.name: _value(information, option.name) for option in table}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _value(information: object, option: str) -> Any:
    if option != "tag":
        return getattr(information, option)
    # Twino's information about a queue calls its tag "tag name". An empty tag is none.
    is_queue = isinstance(information, QueueInformation)
    return getattr(information, "tag_name" if is_queue else "tag") or None


def _binding(binding: Binding) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, str) else value for name, value in dataclasses.asdict(binding).items()
    }


def _policy(policy: _admin_policies.Policy) -> dict[str, Any]:
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in policy.options.items()}
    return {"name": policy.name, "pattern": policy.pattern, "priority": policy.priority, "options": options}


def _changed(table: Iterable[Option], now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The options of `wanted` that differ."""
    known = {option.name for option in table}
    if unknown := wanted.keys() - known:
        raise errors.ConfigError(f"unknown option {min(unknown)!r} in the definitions; use the version that wrote them")
    return {name: (now.get(name), value) for name, value in wanted.items() if now.get(name) != value}


def _given(table: Iterable[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the dataclasses take them, where ``None`` would mean to leave one unchanged."""
    kinds = {option.name: option.kind for option in table}
    for name, value in values.items():
        if value is None and kinds[name] not in _REMOVING:
            raise errors.BadRequest(f"the option {name} cannot be removed; remove the object, or give it a value", 400)
    given = {name: _REMOVING.get(kinds[name]) if value is None else value for name, value in values.items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _plan_policies(wanted: Iterable[Mapping[str, Any]], admin: str | None, token: str | None) -> Iterable[Change]:
    """Policies come before queues, so that queues which differ from their policies are changed after them."""
    wanted = list(wanted)
    if not wanted:
        return
    if admin is None:
        raise errors.ConfigError(
            "these definitions have policies, which belong to the admin side; give its URL, for example with --admin "
            "http://127.0.0.1:2627, or remove the member policies"
        )
    existing = {policy.name: _policy(policy) for policy in _admin_policies.policies(admin, token=token)}
    for each in wanted:
        now = existing.get(each["name"])
        before, after = {} if now is None else _aspects(now), _aspects(each)
        changed = {
            name: (before.get(name), after.get(name)) for name in before | after if before.get(name) != after.get(name)
        }
        if changed:
            yield Change(
                action="create" if now is None else "change",
                subject=f"policy {each['name']}",
                options=changed,
                _perform=_setting_policy(admin, token, each),
            )


def _aspects(policy: Mapping[str, Any]) -> dict[str, Any]:
    options = {f"queue.{option}": value for option, value in policy["options"].items()}
    return {"pattern": policy["pattern"], "priority": policy["priority"]} | options


def _plan_channels(client: sync.Client, wanted: Iterable[Mapping[str, Any]]) -> Iterable[Change]:
    existing = {channel.name.lower(): channel for channel in client.channels()}
    for each in wanted:
        name = each["name"]
        now = existing.get(name.lower())
        if now is None:
            options = _set_values(each["options"]) | {f"queue.{k}": v for k, v in _set_values(each["queue"]).items()}
            yield Change(
                action="create",
                subject=f"channel {name}",
                options={option: (None, value) for option, value in options.items()},
                _perform=_creating_channel(client, name, each),
            )
            continue
        own = _changed(CHANNEL_OPTIONS, _values(CHANNEL_OPTIONS, now), each["options"])
        of_queues = _changed(QUEUE_OPTIONS, _values(QUEUE_OPTIONS, now), each["queue"])
        if own or of_queues:
            yield Change(
                action="change",
                subject=f"channel {name}",
                options=own | {f"queue.{option}": values for option, values in of_queues.items()},
                _perform=_updating_channel(client, name, _wanted(own), _wanted(of_queues)),
            )


def _plan_queues(client: sync.Client, wanted: Iterable[Mapping[str, Any]]) -> Iterable[Change]:
    existing = {
        f"{queue.channel}/{queue.id}".lower(): queue
        for channel in client.channels()
        for queue in client.queues(channel.name)
    }
    for each in wanted:
        name = each["queue"]
        now = existing.get(name.lower())
        if now is None:
            values = _set_values(each["options"])
            yield Change(
                action="create",
                subject=f"queue {name}",
                options={option: (None, value) for option, value in values.items()},
                _perform=_creating_queue(client, name, values),
            )
            continue
        changed = _changed(QUEUE_OPTIONS, _values(QUEUE_OPTIONS, now), each["options"])
        if changed:
            yield Change(
                action="change",
                subject=f"queue {name}",
                options=changed,
                _perform=_updating_queue(client, name, _wanted(changed)),
            )


def _plan_routers(client: sync.Client, wanted: Iterable[Mapping[str, Any]]) -> Iterable[Change]:
    existing = {router.name: router for router in client.routers()}
    for each in wanted:
        name, now = each["name"], existing.get(each["name"])
        bindings = {binding["name"]: binding for binding in each["bindings"]}
        if now is None:
            yield Change(
                action="create",
                subject=f"router {name}",
                options={"method": (None, each["method"])},
                _perform=_creating_router(client, name, each["method"]),
            )
            present: dict[str, dict[str, Any]] = {}
        else:
            present = {str(binding.name): _binding(binding) for binding in client.bindings(name)}
        for binding_name, binding in bindings.items():
            if present.get(binding_name) != binding:
                yield Change(
                    action="change" if binding_name in present else "create",
                    subject=f"binding {binding_name} of router {name}",
                    options={"target": (present.get(binding_name, {}).get("target"), binding["target"])},
                    _perform=_binding_router(client, name, binding, replaces=binding_name in present),
                )
        is_enabled = True if now is None else now.enabled
        if is_enabled != each["enabled"]:
            yield Change(
                action="change",
                subject=f"router {name}",
                options={"enabled": (is_enabled, each["enabled"])},
                _perform=_enabling_router(client, name, enabled=each["enabled"]),
            )


def _wanted(changed: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {option: value for option, (_, value) in changed.items()}


def _set_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _channel_options(own: Mapping[str, Any], of_queues: Mapping[str, Any]) -> ChannelOptions:
    return ChannelOptions(queue=QueueOptions(**_given(QUEUE_OPTIONS, of_queues)), **_given(CHANNEL_OPTIONS, own))


# Functions that return functions, because a lambda in a loop would see the values of the last round. The returned
# functions convert the options, so that an impossible value spoils only its own change.


def _setting_policy(admin: str, token: str | None, wanted: Mapping[str, Any]) -> Callable[[], object]:
    return lambda: _admin_policies.set_policy(
        admin,
        wanted["name"],
        wanted["pattern"],
        QueueOptions(**_given(QUEUE_OPTIONS, wanted["options"])),
        priority=wanted["priority"],
        token=token,
    )


def _creating_channel(client: sync.Client, name: str, wanted: Mapping[str, Any]) -> Callable[[], object]:
    own, of_queues = _set_values(wanted["options"]), _set_values(wanted["queue"])
    return lambda: client.create_channel(name, _channel_options(own, of_queues))


def _updating_channel(
    client: sync.Client, name: str, own: Mapping[str, Any], of_queues: Mapping[str, Any]
) -> Callable[[], object]:
    return lambda: client.update_channel(name, _channel_options(own, of_queues))


def _creating_queue(client: sync.Client, name: str, options: Mapping[str, Any]) -> Callable[[], object]:
    return lambda: client.create_queue(name, QueueOptions(**_given(QUEUE_OPTIONS, options)))


def _updating_queue(client: sync.Client, name: str, options: Mapping[str, Any]) -> Callable[[], object]:
    return lambda: client.update_queue(name, QueueOptions(**_given(QUEUE_OPTIONS, options)))


def _creating_router(client: sync.Client, name: str, method: str) -> Callable[[], object]:
    return lambda: client.create_router(name, method)


def _binding_router(
    client: sync.Client, name: str, wanted: Mapping[str, Any], *, replaces: bool
) -> Callable[[], object]:
    def perform() -> None:
        binding = Binding(**wanted)
        if replaces:
            client.unbind(name, str(binding.name))
        client.bind(name, binding)

    return perform


def _enabling_router(client: sync.Client, name: str, *, enabled: bool) -> Callable[[], object]:
    return lambda: client.enable_router(name) if enabled else client.disable_router(name)
