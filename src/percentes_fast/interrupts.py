"""SIGINT and SIGTERM while a run is under way: one ends it in order, the next one at once.

Never: breaks off what must be whole, or takes a signal that the caller had switched off (nohup).
Plan: `Interrupts` raises KeyboardInterrupt in the main thread; between `hold` and `let_go` the
first signal waits, and one more does not.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The handlers, from `with` to its end; in another thread than the main one, nothing."""

    def __init__(self) -> None:
        self._held = self._waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._told)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        if self._held and not self._waits:
            self._waits = True
            return
        raise KeyboardInterrupt

    def hold(self) -> None:
        """From here on the first signal waits."""
        self._held = True

    def let_go(self) -> None:
        """Raises the KeyboardInterrupt that waited, if one did."""
        self._held, waited, self._waits = False, self._waits, False
        if waited:
            raise KeyboardInterrupt
