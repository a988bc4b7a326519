"""Tasks with Celery, whose broker is mqcore."""

from celery import Celery
from celery.schedules import crontab

app = Celery("celery_tasks", broker="mqcore://127.0.0.1:2622", backend="mqcore://127.0.0.1:9000")
app.conf.beat_schedule = {"nightly": {"task": "celery_tasks.report", "schedule": crontab(hour=3, minute=0)}}


@app.task(bind=True, max_retries=3, acks_late=True, autoretry_for=(ConnectionError,), retry_backoff=True)
def send_email(self, to: str, subject: str) -> int:  # type: ignore[no-untyped-def]
    print(f"to {to}, attempt {self.request.retries + 1}")
    return len(subject)


@app.task
def report() -> None:
    print("report")


if __name__ == "__main__":
    result = send_email.delay("ada@example.com", subject="hello")
    print(result.get(timeout=10))
    send_email.apply_async(("bob@example.com", "later"), countdown=300)
