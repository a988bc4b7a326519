"""A Flask service that publishes orders and reads a queue. `gunicorn --workers 2 flask_service:app` serves it.

The broker is `mqcore serve --auto-create`, or another one in MQCORE_URL.
"""

from flask import Flask, request
from flask.typing import ResponseReturnValue

from mqcore.flask import Mqcore

app = Flask(__name__)
mq = Mqcore(app)


@app.post("/orders")
@mq.limit("1000/m")
def place() -> ResponseReturnValue:
    """Publish an order, on the connection of this process."""
    receipt = mq.client.publish("orders/1001", request.get_json())
    return {"confirmed_by": receipt.by}, 202


@app.get("/orders")
@mq.limit("5/m", name="reads")
def waiting() -> ResponseReturnValue:
    """Count the orders that wait."""
    return {"waiting": mq.client.queue("orders", 1001).information().messages}
