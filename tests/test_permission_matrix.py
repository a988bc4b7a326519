"""Every command of every protocol with every kind of rule, compared with a model of the rules in docs/security.md.

`test_authority_matrix.py` has the commands and a few personas. Here each persona has one or some rules of a vocabulary:
every action with patterns that match, nearly match, or match in another case. The full depth tries more than 30,000
cells, the quick depth a random part of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from depth import FULL, choices, rounds
from eventmq_rights import Refused, connect
from personas import ALLOWED, DENIED, MINE, OTHER, TURNED_AWAY, Attempt, Persona, Place, place
from served import wait_until
from test_authority_matrix import ADAPTERS, TOKENS_ONLY

ACTIONS = (
    "create", "join", "push", "pull", "receive", "direct", "route", "events", "administer", "publish", "subscribe",
    "limit", "inspect",
)  # fmt: skip
PATTERNS = (
    "", "orders", "orders/*", "orders/1", "ORDERS/*", "Orders.*", "orders.new", "*s/1", "o*/*", "sorter", "p*r", "/*",
)  # fmt: skip
"""Patterns that cover something, nearly do, or do in another case. The first covers everything."""
OF_JOBS = (
    ("push:orders/*", "push:default"),
    ("push:orders/*", "create:default"),
    ("push:orders/*", "push:default", "create:default"),
    ("push:orders/*", "create:orders/77"),
    ("push:orders/1", "direct"),
    ("receive:orders/*", "direct"),
    ("receive:orders/*", "push:invoices/1"),
    ("administer:@scheduler",),
    ("administer:@scheduler", "push:orders/1"),
)
"""Rules that clients, workers and schedulers need together, some of them incomplete."""
COMBINATIONS = 20
CHUNK = 8
"""Number of rule sets that share a broker."""


def rule_sets() -> list[tuple[str, ...]]:
    """Each rule alone, all actions but one, those of jobs, and random combinations."""
    rules = [f"{action}:{pattern}" if pattern else action for action, pattern in product(ACTIONS, PATTERNS)]
    alone = [(rule,) for rule in rules]
    all_but_one = [tuple(action for action in ACTIONS if action != missing) for missing in ACTIONS]
    scoped = [(f"{','.join(ACTIONS)}:{pattern}",) for pattern in PATTERNS if pattern]
    chance = choices(__name__)
    combined = [tuple(chance.sample(rules, chance.randint(2, 8))) for _ in range(COMBINATIONS)]
    return [*alone, *all_but_one, *scoped, *OF_JOBS, *combined]


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern, in which only `*` is special, matches a whole text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def covers(rule: str, action: str, resource: str) -> bool:
    """Whether a rule allows an action, as docs/security.md says."""
    actions, _, pattern = rule.partition(":")
    if not set(action.split("|")) & set(actions.split(",")):
        return False
    if not pattern.strip("*"):
        return True
    if resource == "*":
        return False
    root = resource.partition("/")[0]
    of_channel = action in ("create", "join", "push", "pull", "receive", "events")
    if of_channel or (action == "administer" and root in (MINE, OTHER)):
        pattern, resource, root = pattern.lower(), resource.lower(), root.lower()
        whole_channel = pattern.endswith("*") and matches(pattern, f"{root}/")
        if resource.endswith("/*"):
            return whole_channel
        return matches(pattern, resource) or ("/" not in resource and whole_channel)
    if resource.endswith("*"):
        # All topics with this beginning.
        return pattern.endswith("*") and matches(pattern, resource.removesuffix("*"))
    return matches(pattern, resource)


def expected(rules: tuple[str, ...], attempt: Attempt) -> str:
    """Verdict of the model about an attempt."""
    return ALLOWED if all(any(covers(rule, *need) for rule in rules) for need in attempt.needs) else DENIED


RULE_SETS = rule_sets()


def chunks() -> list[tuple[str, int, int]]:
    """Protocols with parts of the rule sets, as first and last number."""
    firsts = range(0, len(RULE_SETS), CHUNK)
    return [(protocol, first, min(first + CHUNK, len(RULE_SETS))) for protocol in ADAPTERS for first in firsts]


def sampled() -> list[tuple[str, int, int]]:
    """Some random rule sets for each protocol."""
    chance = choices(f"{__name__} sample")
    width = rounds("PERMISSION_SETS", quick=3, full=CHUNK)
    firsts = {protocol: chance.randrange(len(RULE_SETS) - width) for protocol in ADAPTERS}
    return [(protocol, first, first + width) for protocol, first in firsts.items()]


def attempts_of(protocol: str) -> list[Attempt]:
    """Commands of a protocol. Only a token, not a password, changes something on the admin side."""
    return list(ADAPTERS[protocol].attempts)


@contextmanager
def broker_with(directory: Path, sets: dict[str, tuple[str, ...]]) -> Iterator[Place]:
    places = place(directory, personas={name: Persona(rules) for name, rules in sets.items()})
    here = next(places)
    try:
        yield here
    finally:
        places.close()


def test_the_matrix_has_enough_cells_and_both_verdicts_of_each_command() -> None:
    assert sum(len(attempts_of(protocol)) for protocol in ADAPTERS) * len(RULE_SETS) >= 30_000
    for protocol, adapter in ADAPTERS.items():
        assert adapter.entry == ()
        for attempt in attempts_of(protocol):
            verdicts = {expected(rules, attempt) for rules in RULE_SETS}
            assert verdicts == ({ALLOWED, DENIED} if attempt.needs else {ALLOWED}), (protocol, attempt)
    assert not [name for name in TOKENS_ONLY if name.startswith("token that")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protocol", "first", "last"),
    chunks() if FULL else sampled(),
    ids=lambda value: str(value),
)
def test_every_command_obeys_every_rule(protocol: str, first: int, last: int, tmp_path: Path) -> None:
    sets = {f"token that has rules {number}": RULE_SETS[number] for number in range(first, last)}
    adapter = ADAPTERS[protocol]
    wrong = []
    with broker_with(tmp_path, sets) as here:
        denials = here.denials()
        denied = 0
        is_changed = True
        for name, rules in sets.items():
            shown = name if protocol == "throttr" else here.shown[name]
            for attempt in attempts_of(protocol):
                if is_changed:
                    here.restore()
                before = here.state()
                outcome = adapter.attempt(here, shown, attempt.name)
                wanted = expected(rules, attempt)
                is_changed = outcome == ALLOWED
                denied += outcome == DENIED
                if outcome != wanted:
                    wrong.append(f"{attempt.name}: {outcome}, but the rules {rules} say {wanted}")
                elif not is_changed and here.state() != before:
                    wrong.append(f"{attempt.name}: denied by {rules}, and it left a trace")
                assert outcome != TURNED_AWAY, (attempt.name, rules)
        wait_until(lambda: here.denials() >= denials + denied, what="the audit lines")
    assert not wrong, "\n".join(wrong)


def test_only_administrators_stop_the_broker(tmp_path: Path) -> None:
    stop = Attempt("DISCONNECT", (("administer", "*"),))
    refused = [rules for rules in RULE_SETS if expected(rules, stop) == DENIED]
    allowed = [rules for rules in RULE_SETS if expected(rules, stop) == ALLOWED]
    chance = choices(f"{__name__} stop")
    tried = [*(refused if FULL else chance.sample(refused, 8)), chance.choice(allowed)]
    sets = {f"token that has rules {number}": rules for number, rules in enumerate(tried)}
    with broker_with(tmp_path, sets) as here:
        for name, rules in sets.items():
            with connect(here, "admin", here.shown[name]) as peer:
                peer.say("DISCONNECT", "asked")
                answer = peer.heard_or_control()
            if expected(rules, stop) == DENIED:
                assert answer[0] == b"ERROR", rules
                assert b"401 " in answer[1], rules
            else:
                assert answer[2:3] == [b"ACK"], rules
        # The last one has stopped it: it accepts no client any more.
        wait_until(lambda: not accepts_connections(here), what="the end of the broker")


def accepts_connections(here: Place) -> bool:
    try:
        connect(here, "admin", here.shown["admin token"]).close()
    except (OSError, EOFError, Refused):
        return False
    return True
