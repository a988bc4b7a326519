"""Cost of TLS: handshakes a second, and the throughput of one producer and one consumer, encrypted and plain.

    maturin develop --release
    python benches/tls.py

The broker is a process of its own; producer and consumer are processes of this program. They write and read large
pieces through Python's ``ssl`` module, whose work is OpenSSL's, so that the loops weigh the same encrypted and plain.
Certificates are made for the run (``trustme``).
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trustme
from loops import BODY_BYTES, PREAMBLE, QUEUE, Address, publication, throughput


def cpu_seconds(pid: int) -> float:
    """Resources used by a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def handshakes(address: Address, seconds: float, pid: int, *, resume: bool) -> tuple[float, float]:
    """Connections a second of one client, one after the other, and the broker's processor time for each in ms."""
    context = address.context()
    session: ssl.SSLSession | None = None
    before, count = cpu_seconds(pid), 0
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        stream = address.connect(context, session)
        stream.sendall(PREAMBLE)
        stream.recv(len(PREAMBLE))
        if resume and isinstance(stream, ssl.SSLSocket):
            if count and not stream.session_reused:
                raise SystemExit("the broker does not take up sessions")
            session = stream.session
        stream.close()
        count += 1
    elapsed = time.monotonic() - start
    return count / elapsed, (cpu_seconds(pid) - before) * 1000 / count


def serve(folder: Path) -> tuple[subprocess.Popen[str], Address, Address]:
    """Start a broker with a plain and an encrypted listener."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    chain, ca = folder / "chain.pem", folder / "ca.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(str(chain))
    chain.chmod(0o600)
    authority.cert_pem.write_to_path(str(ca))
    settings = folder / "mqcore.toml"
    settings.write_text(
        "auto_create_channels = true\nauto_create_queues = true\n[channel.queue]\nstatus = 'broadcast'\n"
    )
    command = [sys.executable, "-m", "mqcore", "serve", "--config", str(settings)]
    command += ["--listen", "tmqp://127.0.0.1:0", "--listen", f"tmqps://127.0.0.1:0?cert={chain}"]
    broker = subprocess.Popen([*command, "--admin", "http://127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    # In the order in which they were asked for.
    bound = json.loads(broker.stdout.readline())["listeners"].values()
    plain, encrypted = (int(address.rpartition(":")[2]) for address in bound)
    return broker, Address(plain), Address(encrypted, str(ca))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each run lasts (default 3)")
    parser.add_argument("--runs", type=int, default=5, help="runs of which the median is printed (default 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker, plain, encrypted = serve(Path(folder))
        try:
            message = publication(QUEUE, b"bench")
            rates = {name: [] for name in ("plain", "TLS")}
            # Taken in turn, so that whatever else the machine does meets both.
            for _ in range(options.runs):
                rates["plain"].append(throughput(plain, message, options.seconds))
                rates["TLS"].append(throughput(encrypted, message, options.seconds))
            middle = {name: statistics.median(values) for name, values in rates.items()}
            print(f"one producer to one consumer, {BODY_BYTES} bytes, messages a second: median, smallest..largest")
            for name, rate in middle.items():
                spread = f"{min(rates[name]):,.0f}..{max(rates[name]):,.0f}"
                print(f"  {name:8} {rate:12,.0f}   {spread:24} {rate / middle['plain']:6.0%}")
            print("connections a second by one client, one after the other, and the broker's processor time for each")
            for name, address, resume in (
                ("plain", plain, False),
                ("TLS", encrypted, False),
                ("resumed", encrypted, True),
            ):
                rate, cost = handshakes(address, options.seconds, broker.pid, resume=resume)
                print(f"  {name:8} {rate:12,.0f}   {cost:6.2f} ms")
        finally:
            broker.terminate()
            broker.wait()


if __name__ == "__main__":
    main()
