"""Celery and kombu on mqcore: ``broker_url="mqcore://host"`` and ``result_backend="mqcore://host"``.

Needs ``pip install mqcore[celery]``. Nothing has to be imported: kombu and Celery find the transport and the result
backend through entry points. docs/celery.md has the details.

The modules, lowest first: `naming` maps AMQP names to queues and topics, `endpoint` reads addresses and credentials,
`envelope` encodes messages, `link` is the TMQP connection, `heartbeats` keeps idle connections open, `queues` declares
queues, `channel` and `transport` are what kombu calls, `store` is the Throttr connection, and `backend` is the result
backend.
"""

__all__: list[str] = []
