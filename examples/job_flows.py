"""Chains and groups of jobs, which the broker keeps. Run it: `python examples/job_flows.py`."""

import threading

import mqcore
from mqcore.jobs import Jobs, Worker

jobs = Jobs()


@jobs.task
def count(text: str) -> int:
    """Return the number of words."""
    return len(text.split())


@jobs.task
def add_up(numbers: list[int]) -> int:
    """Return the sum of all results."""
    return sum(numbers)


def main() -> None:
    """Run all three in one process."""
    with mqcore.Broker(listen=["emqp://127.0.0.1:0"]) as broker, jobs:
        # Workers and clients have sockets of their own.
        backend, frontend = (url.partition("?")[0].rpartition(":")[2] for url in broker.listeners[:2])
        jobs.locate(f"emqp://127.0.0.1:{backend}?frontend={frontend}")
        worker = Worker(jobs, pool="thread")
        thread = threading.Thread(target=worker.run)
        thread.start()
        pages = jobs.group(count.bind(page) for page in ("to be or", "not", "to be"))
        print(pages.then(add_up).enqueue().result(timeout="20s"), "words")
        worker.stop()
        thread.join()


if __name__ == "__main__":
    main()
