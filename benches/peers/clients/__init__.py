"""The measured programs. Each runs in the environment of its library: `python -m peers.clients.NAME`."""
