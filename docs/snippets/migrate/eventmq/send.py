"""Send a job and wait for its result."""

from tasks import add, jobs

print(add.enqueue(2, 3).result(timeout="20s"))
jobs.close()
