"""Conversations of the other files once more, through TLS: the protocol is the same to the byte."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
from authority import Authority
from protocols import test_tmqp_connection, test_tmqp_push, test_tmqp_round_robin
from protocols.conversation import Client, Connect, StartBroker, address


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def broker(start_broker: StartBroker, authority: Authority) -> mqcore.Broker:
    """A broker that speaks TLS, and nothing else."""
    return start_broker(listen=["tmqps://127.0.0.1:0"], tls=mqcore.ListenerTLS(cert=authority.issue()))


@pytest.fixture
def open_socket(authority: Authority) -> Iterator[Connect]:
    """Opens connections through TLS; closes them after the test."""
    with contextlib.ExitStack() as stack:

        def connect(broker: mqcore.Broker) -> Client:
            return stack.enter_context(Client(*address(broker), tls=authority.context()))

        yield connect


joined = test_tmqp_push.joined

test_deliveries = test_tmqp_push.test_deliveries_match_the_bytes_of_the_original
test_acknowledged_deliveries = test_tmqp_push.test_delivery_requesting_acknowledgement_matches_the_bytes_of_the_original
test_acknowledgements = test_tmqp_push.test_relayed_acknowledgement_matches_the_bytes_of_the_original
test_a_lost_consumer = test_tmqp_push.test_messages_of_a_lost_consumer_are_redelivered_to_others
test_side_by_side = test_tmqp_round_robin.test_parallel_consumers_lose_and_duplicate_nothing
test_acceptance = test_tmqp_connection.test_accepted_frame_matches_the_bytes_of_the_original
test_pieces = test_tmqp_connection.test_preamble_and_hello_may_come_in_pieces
test_termination = test_tmqp_connection.test_terminate_closes_at_once_and_without_an_answer
test_pings = test_tmqp_connection.test_ping_is_answered_with_pong_whatever_its_flags
