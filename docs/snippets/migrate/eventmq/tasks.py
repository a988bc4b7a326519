"""Functions that original EventMQ workers and workers of mqcore run."""

from mqcore.jobs import Jobs

jobs = Jobs("emqp://127.0.0.1:47290")


@jobs.task(queue="default")
def add(left: int, right: int) -> int:
    print("adding", left, right)
    return left + right
