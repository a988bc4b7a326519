"""The same tasks with mqcore."""

from mqcore.jobs import Backoff, Jobs, current

jobs = Jobs("emqp://127.0.0.1:47290")


@jobs.task(retries=3, backoff=Backoff("1s"))
def send_email(to: str, subject: str) -> int:
    print(f"to {to}, attempt {current().attempt}")
    return len(subject)


@jobs.task
def report() -> None:
    print("report")


jobs.cron("0 3 * * *", report, timezone="Europe/Berlin")

if __name__ == "__main__":
    job = send_email.enqueue("ada@example.com", subject="hello")
    print(job.result(timeout="10s"))
    send_email.using(run_after="5m").enqueue("bob@example.com", "later")
    jobs.close()
