"""The canary's server: the native known-timing responder as a process of its own.

Never: shares a core with a worker where there is another, or outlives its parent.
Plan: the parent binds the socket and hands it over; the responder runs without the GIL in a thread;
the end of stdin stops it, and it says on stdout how late it was itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from array import array
from typing import Any

from percentes_fast import priority
from percentes_fast.errors import ClientError, remedy

SPIN_NS = 200_000
STOP_TIMEOUT_S = 5.0


class Canary:
    """A running responder; port: where it listens on 127.0.0.1."""

    def __init__(self) -> None:
        try:
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        except OSError as exc:
            raise ClientError(f"canary: {exc.strerror}; {remedy(exc.errno or 0)}") from exc
        self.port: int = listener.getsockname()[1]
        listener.setblocking(False)
        command = [sys.executable, "-m", "percentes_fast.engine.canary", str(listener.fileno())]
        self._process = subprocess.Popen(
            [*command, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
        )
        listener.close()

    def stop(self) -> dict[str, Any] | None:
        """Ends it; its own figures (requests, events, late_max_ns, late_sum_ns), or None."""
        try:
            said, _ = self._process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return None
        with contextlib.suppress(ValueError):
            return dict(json.loads(said))
        return None


def main() -> int:
    """Serves the inherited socket until stdin ends."""
    from percentes_fast import _native

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener, parent = int(sys.argv[1]), int(sys.argv[2])
    stop = array("i", [0])
    found: dict[str, int] = {}

    def respond() -> None:
        priority.this_thread(priority.CANARY)  # a few ms of spinning a second: below any throttle
        found.update(_native.respond(listener, parent, SPIN_NS, stop))

    thread = threading.Thread(target=respond)
    thread.start()
    sys.stdin.buffer.read()
    stop[0] = 1
    thread.join()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
