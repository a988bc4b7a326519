"""The other five tasks: retries, a rejection, a chord inside a task, and one that beat sends."""

from celery import Task, chord
from celery.exceptions import Reject
from tasks import add, app, total


@app.task(bind=True, max_retries=5, default_retry_delay=0.1)
def flaky(self: Task, failures: int) -> int:
    """Fail so many times."""
    if self.request.retries < failures:
        raise self.retry()
    return self.request.retries


@app.task(autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0.1)
def broken() -> None:
    """Fail always."""
    raise ValueError("broken")


@app.task(bind=True)
def once_more(self: Task) -> bool:
    """Reject the first delivery."""
    if not self.request.delivery_info["redelivered"]:
        raise Reject("once more", requeue=True)
    return True


@app.task
def report(count: int) -> str:
    """Start a chord, and return the id of its result."""
    return chord([add.s(number, number) for number in range(count)], total.s())().id


@app.task(ignore_result=True)
def tick() -> None:
    """Run every second, because beat sends it."""
