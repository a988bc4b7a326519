"""Jobs: a task, a broker, a worker that runs it, and its result. Run it: `python examples/jobs.py`."""

import threading

import mqcore
from mqcore.jobs import Backoff, Jobs, Worker, current

jobs = Jobs()


@jobs.task(retries=2, backoff=Backoff("10ms"), timeout="5s")
def divide(left: int, right: int) -> float:
    """Return the result of the job. The first attempt fails."""
    if current().attempt == 1:
        raise ConnectionError("try again")
    return left / right


def main() -> None:
    """Run all three in one process."""
    with mqcore.Broker(listen=["emqp://127.0.0.1:0"]) as broker, jobs:
        # Workers and clients have sockets of their own; with port 0 each has to be named.
        ports = {url.partition("role=")[2]: url.partition("?")[0].rpartition(":")[2] for url in broker.listeners}
        jobs.locate(f"emqp://127.0.0.1:{ports['backend']}?frontend={ports['frontend']}")
        # Usually a separate program: mqcore worker shop:jobs
        worker = Worker(jobs, pool="thread")
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()

        print(divide.enqueue(7, right=2).result(timeout="20s"))
        worker.stop()
        thread.join()
        print(worker.counts.succeeded, "succeeded,", worker.counts.retried, "retried")


if __name__ == "__main__":
    main()
