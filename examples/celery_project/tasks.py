"""Ten tasks, five here: run them with `celery -A tasks worker --beat` in this directory."""

import time

from celery import Celery

app = Celery("tasks", config_source="celeryconfig")


@app.task
def add(x: int, y: int) -> int:
    """Part of chains, groups and chords."""
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    """The body of a chord."""
    return sum(numbers)


@app.task
def echo(value: object) -> object:
    """Return its argument, of any size."""
    return value


@app.task
def now() -> float:
    """Tell when it runs, for tasks with an ETA."""
    return time.time()


@app.task
def sleep(seconds: float) -> None:
    """Take some time."""
    time.sleep(seconds)
