"""Jobs: a task, a broker, a worker that runs it, and a result that comes back. Run it: `python examples/jobs.py`."""

import threading

import mqcore
from mqcore.errors import JobFailed
from mqcore.jobs import Backoff, Jobs, Worker

jobs = Jobs()


@jobs.task(queue="reports", retries=2, backoff=Backoff("10ms"), timeout="5s")
def divide(left: int, right: int) -> float:
    """Return what a job of it results in."""
    return left / right


def main() -> None:
    """Run all three in one process."""
    with mqcore.Broker(listen=["emqp://127.0.0.1:0"]) as broker, jobs:
        # Workers and clients have sockets of their own; with port 0 each has to be named.
        ports = {url.partition("role=")[2]: url.partition("?")[0].rpartition(":")[2] for url in broker.listeners}
        jobs.locate(f"emqp://127.0.0.1:{ports['backend']}?frontend={ports['frontend']}")
        # As a rule another program: mqcore worker shop:jobs --queues reports
        worker = Worker(jobs, queues=["reports"], pool="thread")
        thread = threading.Thread(target=worker.run)
        thread.start()
        print(divide.enqueue(7, right=2).result(timeout="20s"))
        try:
            divide.enqueue(7, right=0).result(timeout="20s")
        except JobFailed as error:
            print(error.remote_type)
        worker.stop()
        thread.join()
        print(worker.tally.done, "done,", worker.tally.retried, "tried again")


if __name__ == "__main__":
    main()
