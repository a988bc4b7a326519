"""Made-up weeks of queues with a daily wave and planted anomalies, and what is usual, in plain Python."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from typing import Any

from spark.made import at
from spark.made import step as made

HOUR = 3600
WEEK = 168
WEEKS = 4
LENGTH = WEEKS * WEEK + 49
"""Hours of the made history: the last 48 complete ones have four earlier weeks."""
MEASURES = ("published", "acked", "dead_lettered", "delivery_ms", "ack_ms")


class Weeks:
    """Steps of queues with a daily wave, and what they are by hour."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.steps: list[dict[str, Any]] = []
        self.values: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self.times: defaultdict[tuple[str, str], defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.number = 0

    def add(self, queue: str, most: int, planted: dict[int, dict[str, Any]]) -> None:
        """A queue with a wave up to `most` messages per hour; `planted` are the hours that differ."""
        for hour in range(LENGTH):
            usual = most * (0.4 + 0.3 * (1 + math.sin(2 * math.pi * hour / 24)))
            differs = planted.get(hour, {})
            count = round(self.chance.gauss(usual, 0.8 * math.sqrt(usual)) * differs.get("times", 1))
            for index in range(max(0, count)):
                self.message(queue, hour, hour * HOUR + 3000 * index / max(1, count), differs)

    def message(self, queue: str, hour: int, second: float, differs: dict[str, Any]) -> None:
        self.number += 1
        of = {"queue": queue}
        waits = self.chance.uniform(0.02, 0.06) * differs.get("slow", 1)
        works = self.chance.uniform(0.1, 0.3)
        self.steps.append(made("produced", self.number, time=at(second), **of))
        self.values[(queue, "published")][hour] += 1
        self.steps.append(made("delivered", self.number, time=at(second + waits), attempt=1, **of))
        self.times[(queue, "delivery_ms")][hour].append(1000 * waits)
        kind = "dead-lettered" if differs.get("dies") else "acked"
        self.steps.append(made(kind, self.number, time=at(second + waits + works), last=True, **of))
        if kind == "acked":
            self.values[(queue, "acked")][hour] += 1
            self.times[(queue, "ack_ms")][hour].append(1000 * works)
        else:
            self.values[(queue, "dead_lettered")][hour] += 1

    def value(self, queue: str, measure: str, hour: int) -> float | None:
        if not measure.endswith("_ms"):
            return float(self.values[(queue, measure)][hour])
        times = sorted(self.times[(queue, measure)][hour])
        return times[math.ceil(0.95 * len(times)) - 1] if len(times) >= 20 else None

    def expected(self, hours: int, threshold: float) -> dict[tuple[str, str, int], tuple[float, float, bool]]:
        """Value, median and verdict of each queue, measure and hour that can be examined."""
        found = {}
        for queue in {queue for queue, _ in self.values}:
            for measure in MEASURES:
                for hour in range(LENGTH - 1 - hours, LENGTH - 1):
                    value = self.value(queue, measure, hour)
                    before = [hour - week * WEEK for week in range(1, 9) if hour - week * WEEK >= 1]
                    samples = [each for at_ in before if (each := self.value(queue, measure, at_)) is not None]
                    if value is None or len(samples) < 3:
                        continue
                    median = statistics.median(samples)
                    mad = statistics.median(abs(each - median) for each in samples)
                    if measure.endswith("_ms"):
                        usual = max(1.4826 * mad, 0.25 * median, 5)
                    else:
                        usual = max(1.4826 * mad, 0.1 * median, math.sqrt(median), 1)
                    score = (value - median) / usual
                    low = measure in {"published", "acked"} and score <= -threshold
                    found[(queue, measure, hour)] = (value, median, score >= threshold or low)
        return found


SPIKE, SILENCE, SLOW, DEAD = LENGTH - 46, LENGTH - 43, LENGTH - 30, LENGTH - 18
PLANTED: dict[int, dict[str, Any]] = {
    SPIKE: {"times": 3},
    **{hour: {"times": 0} for hour in range(SILENCE, SILENCE + 3)},
    SLOW: {"slow": 10},
    DEAD: {"dies": True},
}
