"""Parts in which one message goes to several queues: topics in each protocol, routers, copies, a downstream broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable

import mqcore
from endurance.account import Account
from endurance.load import RETRY_SECONDS, SHARED, Consumer, Label, Lane, Load, Part
from mqcore import Binding, errors, throttr
from mqcore.client import Delivered, Receipt
from mqcore.config import Interaction, RouteMethod
from protocols.conversation import ROUTER, Client
from tmqp_peer import ACKNOWLEDGE, RESPONSE, TERMINATE, PeerClosed, RawFrame


class _ByLane(Consumer):
    """A consumer of a queue that several producers fill."""

    def __init__(self, load: Load, url: str, address: str, accounts: dict[str, Account]) -> None:
        super().__init__(load, url, address)
        self._accounts = accounts

    def account(self, label: Label, message: Delivered[str]) -> Account | None:
        return self._accounts.get(label.lane)


NO_CONSUMERS = "no-consumers"
"""The answer of a router whose bindings have all rejected a message."""
ANSWER_SECONDS = 5.0
"""Longest wait for answers of queues: a queue that cannot save a message is passed over without one."""


class Topics(Part):
    """A topic with bound queues on several shards, and a producer of each protocol: each queue gets each message."""

    name = "topic"
    TOPIC = "news"
    QUEUES = ("alpha/1", "beta/1", "gamma/1")
    PROTOCOLS = ("tmqp", "mqks", "mm2", "throttr")

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._accounts = {
            queue: {protocol: load.account(f"{queue} from {protocol}", is_ordered=True) for protocol in self.PROTOCOLS}
            for queue in self.QUEUES
        }
        self._lanes = {
            protocol: load.lane(protocol, *(self._accounts[queue][protocol] for queue in self.QUEUES), share=0.3)
            for protocol in self.PROTOCOLS
        }

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return [(queue, account) for queue, found in self._accounts.items() for account in found.values()]

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        for queue in self.QUEUES:
            await self.load.declare(main, queue, SHARED)
            await main.bind(f"@topic:{self.TOPIC}", queue)

    def start(self) -> None:
        for protocol in ("tmqp", "mqks", "mm2"):
            self.load.run(self._publish(protocol, self._lanes[protocol]))
        self.load.run(self._publish_throttr(self._lanes["throttr"]))
        for queue, accounts in self._accounts.items():
            self.load.run(_ByLane(self.load, self.place.main_urls["tmqp"], queue, accounts).run())

    def _bodies(self, lane: Lane, numbers: list[int]) -> list[str]:
        for number in numbers:
            lane.sent(number)
        return [Label(lane.name, number).body(self.load.size()) for number in numbers]

    async def _publish(self, protocol: str, lane: Lane) -> None:
        async with self.load.connect(self.place.main_urls[protocol]) as mq:
            async for numbers in self.load.batches(lane):
                bodies = self._bodies(lane, numbers)
                lane.record(numbers, await mq.topic(self.TOPIC).publish_many(bodies, return_exceptions=True))

    async def _publish_throttr(self, lane: Lane) -> None:
        async with throttr.Client(self.place.throttr_url) as client:
            async for numbers in self.load.batches(lane):
                try:
                    async with client.pipeline() as pipeline:
                        for body in self._bodies(lane, numbers):
                            pipeline.publish(self.TOPIC, body.encode())
                        answers = await pipeline.execute()
                except errors.MqcoreError as error:
                    lane.failed(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                for number, is_taken in zip(numbers, answers, strict=True):
                    if is_taken:
                        lane.confirm(number)


class RoutedToAll(Part):
    """A router that distributes to two queues on different shards, each of which confirms: both get each message.

    A client library returns at the first confirmation, so a raw peer counts them.
    """

    name = "pair"
    QUEUES = ("left/1", "right/1")

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._accounts = {queue: load.account(queue, is_ordered=True) for queue in self.QUEUES}
        self._lane = load.lane(self.name, *self._accounts.values())
        self._peer: Client | None = None
        self._is_over = False

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return self._accounts.items()

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await main.create_router(self.name)
        for queue in self.QUEUES:
            await self.load.declare(main, queue, SHARED)
            await main.bind(self.name, Binding(queue, interaction=Interaction.ACKNOWLEDGE))

    def start(self) -> None:
        self.load.run(self._produce())
        for queue, account in self._accounts.items():
            consumer = _ByLane(self.load, self.place.main_urls["tmqp"], queue, {self.name: account})
            self.load.run(consumer.run())

    async def _produce(self) -> None:
        try:
            async for numbers in self.load.batches(self._lane):
                bodies = {}
                for number in numbers:
                    self._lane.sent(number)
                    bodies[number] = Label(self.name, number).body(self.load.size()).encode()
                for number, copies in (await asyncio.to_thread(self._publish, bodies)).items():
                    if copies == len(self.QUEUES):
                        self._lane.confirm(number)
        finally:
            self._is_over = True
            self._forget_peer()

    def _publish(self, bodies: dict[int, bytes]) -> Counter[int]:
        """Publish, and count the confirmations of each message until all have come or the connection is lost."""
        confirmed: Counter[int] = Counter()
        try:
            if self._peer is None:
                host, _, port = self.place.main_urls["tmqp"].partition("://")[2].rpartition(":")
                self._peer = Client(host, int(port), timeout=ANSWER_SECONDS)
                self._peer.hello()
            peer = self._peer
            for number, body in bodies.items():
                name, target = b"%d" % number, self.name.encode()
                peer.send(RawFrame(kind=ROUTER, id=name, target=target, payload=body, pending_acknowledge=True))
            outstanding = len(bodies) * len(self.QUEUES)
            while outstanding > 0:
                frame = peer.receive()
                if frame.kind == TERMINATE:
                    raise PeerClosed("the broker stops")
                # A queue that cannot save a message answers with a response.
                assert frame.kind in (ACKNOWLEDGE, RESPONSE), frame
                reason = frame.header("Reason" if frame.kind == RESPONSE else "Nack-Reason")
                # The router answers for a message that none of its queues accepted, and each queue otherwise.
                outstanding -= len(self.QUEUES) if reason == NO_CONSUMERS else 1
                if reason is None:
                    confirmed[int(frame.id)] += 1
                else:
                    self._lane.failed(errors.Nacked(reason))
        except OSError as error:
            self._lane.failed(error)
            self._forget_peer()
        if self._is_over:
            self._forget_peer()
        return confirmed

    def _forget_peer(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            with contextlib.suppress(OSError):
                peer.close()


class RoutedInTurn(Part):
    """A router whose two queues take turns: exactly one of them gets a message."""

    name = "turns"
    QUEUES = ("odd/1", "even/1")

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._account = load.account(" or ".join(self.QUEUES))
        self._lane = load.lane(self.name, self._account, share=0.5)

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return [(queue, self._account) for queue in self.QUEUES]

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        await main.create_router(self.name, RouteMethod.ROUND_ROBIN)
        for queue in self.QUEUES:
            await self.load.declare(main, queue, SHARED)
            await main.bind(self.name, Binding(queue, interaction=Interaction.ACKNOWLEDGE))

    def start(self) -> None:
        self.load.run(self._produce())
        for queue in self.QUEUES:
            consumer = _ByLane(self.load, self.place.main_urls["tmqp"], queue, {self.name: self._account})
            self.load.run(consumer.run())

    async def _produce(self) -> None:
        async with self.load.connect(self.place.main_urls["tmqp"]) as mq:
            async for numbers in self.load.batches(self._lane):
                sends = []
                for number in numbers:
                    self._lane.sent(number)
                    body = Label(self.name, number).body(self.load.size())
                    sends.append(mq.send(f"@router:{self.name}", body, confirm=True))
                self._lane.record(numbers, await asyncio.gather(*sends, return_exceptions=True))


class Copies(Part):
    """Messages with a copy for a queue of another shard: a confirmed copy is there."""

    name = "copies"
    QUEUES = ("lead/1", "copy/1")

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._accounts = {queue: load.account(queue, is_ordered=True) for queue in self.QUEUES}
        self._lane = load.lane(self.name, *self._accounts.values(), share=0.5)

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return self._accounts.items()

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        for queue in self.QUEUES:
            await self.load.declare(main, queue, SHARED)

    def start(self) -> None:
        self.load.run(self._produce())
        for queue, account in self._accounts.items():
            consumer = _ByLane(self.load, self.place.main_urls["tmqp"], queue, {self.name: account})
            self.load.run(consumer.run())

    async def _produce(self) -> None:
        lead, copy = self.QUEUES
        async with self.load.connect(self.place.main_urls["tmqp"]) as mq:
            async for numbers in self.load.batches(self._lane):
                for number in numbers:
                    self._lane.sent(number)
                bodies = [Label(self.name, number).body(self.load.size()) for number in numbers]
                outcomes = await mq.publish_many(lead, bodies, cc=[copy], return_exceptions=True)
                for number, outcome in zip(numbers, outcomes, strict=True):
                    if not isinstance(outcome, Receipt):
                        self._lane.failed(outcome)
                        continue
                    self._lane.confirmed += 1
                    self._accounts[lead].confirm(number)
                    if [found.status for found in outcome.copies] == ["confirmed"]:
                        self._accounts[copy].confirm(number)


class Forwarded(Part):
    """Messages of a downstream broker: its queue and that of the main broker each have all of them, once, in order.

    A message of a topic may arrive at the main broker again if it was killed before it confirmed it.
    """

    name = "site"
    QUEUE = "site/1"
    TOPIC = "far"
    TOPIC_QUEUE = "far/1"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._here = {
            self.QUEUE: load.down_account(f"{self.QUEUE} downstream", is_ordered=True),
            self.TOPIC_QUEUE: load.down_account(f"{self.TOPIC_QUEUE} downstream", is_ordered=True),
        }
        self._there = {
            self.QUEUE: load.account(f"{self.QUEUE} forwarded", is_ordered=True),
            self.TOPIC_QUEUE: load.account(f"{self.TOPIC_QUEUE} forwarded", is_ordered=True, may_repeat=True),
        }
        self._lanes = {
            queue: load.lane(f"down-{queue.partition('/')[0]}", self._here[queue], self._there[queue], share=0.5)
            for queue in self._here
        }

    def accounts(self) -> Iterable[tuple[str, Account]]:
        return self._there.items()

    def down_accounts(self) -> Iterable[tuple[str, Account]]:
        return self._here.items()

    async def declare(self, main: mqcore.Client, down: mqcore.Client) -> None:
        for mq in (main, down):
            await self.load.declare(mq, self.QUEUE, SHARED)
            await self.load.declare(mq, self.TOPIC_QUEUE, SHARED)
            await mq.bind(f"@topic:{self.TOPIC}", self.TOPIC_QUEUE)

    def start(self) -> None:
        for queue, target in ((self.QUEUE, self.QUEUE), (self.TOPIC_QUEUE, f"@topic:{self.TOPIC}")):
            lane = self._lanes[queue]
            self.load.run(self._produce(lane, target))
            for url, accounts in ((self.place.down_url, self._here), (self.place.main_urls["tmqp"], self._there)):
                self.load.run(_ByLane(self.load, url, queue, {lane.name: accounts[queue]}).run())

    async def _produce(self, lane: Lane, target: str) -> None:
        async with self.load.connect(self.place.down_url) as mq:
            async for numbers in self.load.batches(lane):
                for number in numbers:
                    lane.sent(number)
                bodies = [Label(lane.name, number).body(self.load.size()) for number in numbers]
                lane.record(numbers, await mq.publish_many(target, bodies, return_exceptions=True))
