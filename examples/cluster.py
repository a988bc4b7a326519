"""Three nodes keep the same queue: the one that leads is killed, and its messages are at the others."""

import contextlib
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import mqcore
import mqcore.cluster

NODE = """listen = ["tmqp://127.0.0.1:{client}"]
data_dir = "{node}"
cluster = {{node = {node}, listen = "127.0.0.1:{member}", peers = {peers}, secret = "at least 16 characters"}}
"""
with contextlib.ExitStack() as stack:
    probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(6)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
clients, members = dict(enumerate(ports[:3], 1)), dict(enumerate(ports[3:], 1))
urls = [f"tmqp://127.0.0.1:{port}" for port in clients.values()]
with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
    nodes = {}
    for node, member in members.items():
        peers = [f"{other}=127.0.0.1:{port}" for other, port in members.items() if other != node]
        (Path(name) / f"{node}.toml").write_text(
            NODE.format(client=clients[node], node=node, member=member, peers=peers)
        )
        command = [sys.executable, "-m", "mqcore", "serve", "--config", f"{node}.toml"]
        nodes[node] = subprocess.Popen(command, cwd=name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running.callback(nodes[node].kill)
    with mqcore.sync.connect(urls, patience=20) as client:
        client.create_queue("orders/1001", mqcore.QueueOptions(status="pull", delivery_handler="at-least-once"))
        client.publish_many("orders/1001", [b"1 apple", b"2 pears"])
    leader = mqcore.cluster.status(f"127.0.0.1:{members[1]}", secret=b"at least 16 characters").leader
    nodes[leader or 1].kill()
    with mqcore.sync.connect([url for node, url in enumerate(urls, 1) if node != leader], patience=20) as client:
        print("still there:", [bytes(message.body) for message in client.queue("orders/1001").pull(2)])
