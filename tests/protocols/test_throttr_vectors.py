"""Every recorded dialog of Throttr, said again to the real listener: at its own width, and derived for the others.

Where the original is odd, `CHOICES` says what is answered here instead; docs/protocols/throttr.md says why.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import mqcore
from mqcore.testing import TestBroker
from throttr_peer import WIDTHS, Dialogue, Inexpressible, Step, ThrottrPeer, derive, dialogues, replay

ALL = list(dialogues())

YES, NO = b"\x01", b"\x00"

# By name: which step is answered otherwise, how, and which bytes of that are compared.
CHOICES: dict[str, dict[int, tuple[bytes, bytes]]] = {
    # An expired name is free at once.
    "insert_ttl_zero": {2: (YES, b"\xff"), 3: (bytes.fromhex("010500043b00"), bytes.fromhex("ffffffff0000"))},
    "expire_counter_1s": {5: (YES, b"\xff")},
    "expire_buffer_1s": {4: (bytes.fromhex("01043b000500616761696e"), bytes.fromhex("ffff0000ffffffffffffff"))},
    "expire_grace_then_reinsert": {
        1: (YES, b"\xff"),
        2: (NO, b"\xff"),
        3: (bytes.fromhex("010800043b00"), bytes.fromhex("ffffffff0000")),
    },
    # A changed deadline holds, whichever way it moved.
    "update_ttl_patch_zero": {2: (NO, b"\xff")},
    "update_ttl_decrease_past_zero": {2: (NO, b"\xff")},
    "update_ttl_shortened_expiry_on_time": {2: (NO, b"\xff")},
    # A change that means nothing is refused.
    "update_quota_change_3": {1: (NO, b"\xff")},
    "update_ttl_change_3": {1: (NO, b"\xff")},
    # Milliseconds are milliseconds.
    "insert_query_milliseconds": {1: (bytes.fromhex("01070003ffff"), bytes.fromhex("ffffffff0000"))},
    # One refusal is one byte.
    "stat_missing": {0: (NO, b"\xff")},
    "expired_key_leaves_list": {3: (NO, b"\xff")},
    # Subscribing twice is subscribing.
    "subscribe_twice": {},
}

# PUBLISH is answered in family 7.1 too.
PUBLISHED: dict[str, dict[int, bytes]] = {
    "publish_to_other": {1: YES},
    "publish_to_two": {2: YES},
    "publish_self": {1: YES},
    "publish_no_subscriber": {0: NO},
    "publish_empty_payload": {1: YES},
    "publish_255": {1: YES},
    "publish_4000": {1: YES},
    "publish_star": {1: NO},
    "disconnect_removes_subscription": {4: NO},
    "publish_counts_in_channel": {1: YES},
    "subscribe_twice": {3: YES},
}


def as_chosen(dialogue: Dialogue) -> Dialogue:
    """The answers expected of mqcore: those of the original, unless a choice differs."""
    steps = list(dialogue.steps)
    if dialogue.kind == "conformance":
        return dialogue
    for number, (expect, mask) in CHOICES.get(dialogue.name, {}).items():
        steps[number] = replace(steps[number], expect=expect, mask=mask)
    if dialogue.family == "7.1":
        for number, status in PUBLISHED.get(dialogue.name, {}).items():
            steps[number] = replace(steps[number], expect=status, mask=b"\xff", quiet_ms=0)
    if dialogue.name == "subscribe_twice":
        steps[2] = replace(steps[2], expect=b"\x01\x01" + steps[2].expect[2:49], mask=steps[2].mask[:49])
        pushed = steps[4].expect[: len(steps[4].expect) // 2]
        steps[4] = replace(steps[4], expect=pushed, mask=b"\xff" * len(pushed), quiet_ms=100)
    if dialogue.name.startswith(("unknown_type", "event_on", "valid_then_unknown")):
        # An unknown code ends the connection, and no other.
        first = replace(steps[0], quiet_ms=0, eof=True)
        steps = [first, *(step for step in steps[1:] if step.conn != first.conn)]
    return replace(dialogue, steps=tuple(steps))


def say(dialogue: Dialogue) -> None:
    """Replay it with a broker of its own, whose clock moves only at its pauses."""
    with TestBroker(listen=[dialogue.url], shards=2) as broker:
        replay(dialogue, lambda: connect(broker, dialogue), lambda pause: turn(broker, pause))


def turn(broker: TestBroker, milliseconds: int) -> None:
    asyncio.run(broker.clock.advance(milliseconds=milliseconds))


def connect(broker: mqcore.Broker, dialogue: Dialogue) -> ThrottrPeer:
    host, _, port = broker.listeners[0].removeprefix("throttr://").rpartition(":")
    return ThrottrPeer((host, int(port)), WIDTHS[dialogue.width])


def derived(width: str) -> list[Dialogue]:
    """The dialogues that this width can express."""
    found = []
    for dialogue in ALL:
        try:
            found.append(derive(as_chosen(dialogue), width))
        except Inexpressible:
            continue
    return found


def test_all_dialogues_are_there() -> None:
    kinds = [dialogue.kind for dialogue in ALL]
    assert (kinds.count("conformance"), kinds.count("quirk"), kinds.count("undefined")) == (201, 65, 6)


def test_every_choice_belongs_to_a_quirk() -> None:
    odd = {dialogue.name for dialogue in ALL if dialogue.kind == "quirk"}
    assert set(CHOICES) | set(PUBLISHED) <= odd


@pytest.mark.parametrize("dialogue", ALL, ids=lambda dialogue: dialogue.id)
def test_conversation_is_answered_as_recorded(dialogue: Dialogue) -> None:
    say(as_chosen(dialogue))


@pytest.mark.parametrize("width", [width for width in WIDTHS if width != "uint16"])
def test_the_same_dialogues_are_answered_in_the_other_widths(width: str) -> None:
    those = derived(width)
    assert len(those) > 170, len(those)
    for dialogue in those:
        say(dialogue)


def test_deriving_a_conversation_for_its_own_width_changes_nothing() -> None:
    same = 0
    for chosen in map(as_chosen, ALL):
        try:
            again = derive(chosen, "uint16")
        except Inexpressible:
            continue
        for step, derived_step in zip(chosen.steps, again.steps, strict=True):
            assert (step.send, step.expect, step.mask) == (derived_step.send, derived_step.expect, derived_step.mask)
        same += 1
    assert same > 170


def test_steps_do_not_share_state() -> None:
    assert Step("A").capture is not Step("B").capture
