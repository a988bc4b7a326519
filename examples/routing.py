"""Routers: one with rules, one in Python. Producers need to know neither queues nor clients."""

import mqcore


class ByCountry(mqcore.Router):
    """Chooses the queue of each order. Orders without a country go to the fallback."""

    fallback = "orders-elsewhere/1"

    def route(self, message: mqcore.Message, publisher: mqcore.ClientView) -> str | None:
        """Return the queue of the order's country."""
        country = message.headers.get("Country")
        return f"orders-{country}/1" if country in {"de", "tr"} else None


def main() -> None:
    """Declare both routers, and show what they would do with messages."""
    broker = mqcore.Broker(auto_create_channels=True, auto_create_queues=True)
    broker.routers["orders"] = ByCountry()
    broker.routers.add("alarms", "only-first")
    broker.routers.bind("alarms", "@type:operator", priority=10)
    broker.routers.bind("alarms", "alarms/1")
    with broker:
        for router in sorted(broker.stats().routers, key=lambda router: router.name):
            targets = ", ".join(binding.target for binding in router.bindings)
            print(f"{router.name}, {router.method}: {targets}")


main()
