"""What kernel stamps cost: the same loads with them on and off, in turn, three times; medians."""

from __future__ import annotations

import statistics

import rig

LOADS = {
    "1000 one-token streams /s": rig.Load(5000, 1000.0, 1, poll="busy"),
    "500 streams, a token every 10 ms": rig.Load(500, 2500.0, 100, 50_000, poll="busy"),
}
ROUNDS = 3


def main() -> None:
    print(rig.machine())
    print(
        "| load | CPU us/event on | off | on / off | send to return p50 us on | off |\n|"
        + "---|" * 6
    )
    for name, load in LOADS.items():
        cost: dict[bool, list[float]] = {True: [], False: []}
        send: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(ROUNDS):
            for stamps in (True, False):
                seen = rig.measure(rig.Load(**{**load.__dict__, "stamps": stamps}))
                cost[stamps].append((seen.cpu_s - seen.idle_s) / len(seen.event_late) * 1e6)
                send[stamps].append(rig.us(seen.sent - seen.dispatch, 50))
        on, off = statistics.median(cost[True]), statistics.median(cost[False])
        sends = [statistics.median(send[stamps]) for stamps in (True, False)]
        print(
            f"| {name} | {on:.2f} | {off:.2f} | {on / off:.2f} | {sends[0]:.1f} | {sends[1]:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
