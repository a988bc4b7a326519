"""Rate limits in this process: a check, several keys together, a decorated function."""

from mqcore.errors import RateLimited
from mqcore.ratelimit import RateLimiter

limiter = RateLimiter.local()


@limiter.limit("2/h", key=lambda user: f"report:{user}")
def report(user: str) -> str:
    """Make a report, twice an hour for each user."""
    return f"a report for {user}"


def main() -> None:
    """Use up some limits."""
    for _ in range(3):
        verdict = limiter.check("user:7", "2/m")
        print("allowed" if verdict else f"refused, again in {verdict.retry_after:.0f} s", verdict.remaining)
    allowed, _ = limiter.check_all([("user:8", "10/m", 3), ("everybody", "2/m", 3)])
    print("both" if allowed else "neither", limiter.peek("user:8", "10/m").remaining)
    try:
        print(report("ann"), report("ann"), report("ann"))
    except RateLimited as error:
        print(error.limit)


main()
