"""The native engine's life on a connection, against a scripted server.

Never: asserts how long something took; a script that needs the engine to have read something waits
for the slab to say so.
Plan: connections and their reuse; sending; limits, stops and own figures; kernel stamps. Two rows
of one connection are half a second apart.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from percentes_fast.errors import ClientError
from percentes_fast.schema import Cause
from raw_server import (
    CHUNKED,
    DONE,
    GOOD,
    HEAD,
    LAST_CHUNK,
    Bench,
    Peer,
    Row,
    answer,
    ask,
    chunk,
    closed_port,
    fin,
    keep_answering,
    plain,
    raw_server,
    stream,
    token,
)

pytestmark = pytest.mark.usefixtures("both_engines")
LATER_S = 0.5


# ---------------------------------------------------------------- connections


def test_reuse_takes_the_most_recently_used(tmp_path: Path) -> None:
    second = b"POST /second HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    bench = Bench(tmp_path, Row(), Row(head=second), Row(LATER_S))

    def script(peer: Peer) -> None:
        head = peer.request()
        if b"/second" in head:
            bench.until(lambda ran: ran.ended_ns)
        peer.send(GOOD)
        peer.request()
        peer.send(GOOD)

    with raw_server(script) as server:
        first, last, again = bench.run(server.port)
    assert {first.cause, last.cause, again.cause} == {Cause.STREAM_END}
    assert (first.conn_reused, last.conn_reused, again.conn_reused) == (0, 0, 1)
    assert again.conn_id == last.conn_id != first.conn_id
    assert again.conn_idle_ns == again.dispatch_ns - last.ended_ns
    assert again.connect_ns is None
    assert first.connect_ns > 0
    assert (bench.slab.word("dials"), bench.slab.word("reuses")) == (2, 1)


def test_not_reused_when_idle_too_long(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), Row(LATER_S))
    with raw_server(keep_answering(GOOD)) as server:
        rows = bench.run(server.port, idle_reuse_ns=100_000_000)
    assert [ran.conn_reused for ran in rows] == [0, 0]
    assert rows[1].conn_idle_ns is None
    assert rows[1].connect_ns > 0


@pytest.mark.parametrize(
    "first",
    [
        plain("200 OK", token() + DONE, b"Connection: close"),
        plain("200 OK", token() + DONE).replace(b"1.1", b"1.0", 1),
        GOOD + b"junk",
    ],
)
def test_not_reused_after_an_answer_that_ends_it(tmp_path: Path, first: bytes) -> None:
    bench = Bench(tmp_path, Row(), Row(LATER_S))
    with raw_server(answer(first), answer(GOOD)) as server:
        rows = bench.run(server.port)
        assert len(server.peers) == 2
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 2
    assert [ran.conn_reused for ran in rows] == [0, 0]


@pytest.mark.parametrize("end", [fin, Peer.reset])
def test_closed_while_idle(tmp_path: Path, end: Callable[[Peer], None]) -> None:
    bench = Bench(tmp_path, Row(), Row(LATER_S))
    with raw_server(answer(GOOD, then=end), answer(GOOD)) as server:
        rows = bench.run(server.port)
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 2
    assert rows[1].conn_reused == 0
    assert bench.slab.word("closed_while_idle") == 1


@pytest.mark.parametrize(("end", "cause"), [(fin, Cause.NO_RESPONSE), (Peer.reset, Cause.RESET)])
def test_keep_alive_race(tmp_path: Path, end: Callable[[Peer], None], cause: Cause) -> None:
    """The server ends an idle connection as the next request is on its way."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(GOOD)
        peer.request()
        end(peer)

    bench = Bench(tmp_path, Row(), Row(LATER_S))
    with raw_server(script) as server:
        first, lost = bench.run(server.port)
    assert (first.cause, lost.cause) == (Cause.STREAM_END, cause)
    assert lost.conn_reused == 1
    assert lost.conn_idle_ns > 0
    assert lost.bytes_received == 0


def test_reset_while_dialing_is_a_refusal(tmp_path: Path) -> None:
    """A row of each of two targets: one refuses, the other's answers go on."""
    bench = Bench(tmp_path, Row(), Row(target=1), Row(LATER_S, target=1))
    with raw_server(keep_answering(GOOD)) as server:
        refused, good, again = bench.run(closed_port(), server.port)
    assert refused.cause == Cause.CONNECT
    assert (good.cause, again.cause) == (Cause.STREAM_END, Cause.STREAM_END)
    assert again.conn_reused == 1


# ---------------------------------------------------------------- sending


def test_slow_reader_gets_every_byte(tmp_path: Path) -> None:
    """More than the socket buffers hold: many partial sends, from head into tail."""
    tail = bytes(range(256)) * 65_536
    bench = Bench(tmp_path, Row(head=HEAD % len(tail)))
    with raw_server(answer(GOOD), receive_bytes=65_536) as server:
        ran = bench.run(server.port, tails=[tail])[0]
        assert server.peers[0].requests[0].endswith(b"\r\n\r\n" + tail)
    assert ran.cause == Cause.STREAM_END
    assert ran.dispatch_ns < ran.sent_ns <= ran.headers_ns


def await_stall(peer: Peer) -> None:
    """Until the client cannot send on: what lies unread has not grown for a while."""
    waiting, since = -1, time.monotonic()
    while time.monotonic() - since < 0.3:
        now = struct.unpack("i", fcntl.ioctl(peer.sock, termios.FIONREAD, b"\0" * 4))[0]
        if now != waiting or now == 0:
            waiting, since = now, time.monotonic()
        time.sleep(0.01)


def leave(peer: Peer) -> None:
    """Returns, so that the socket is closed: with bytes unread that is a RST."""


def hold(peer: Peer) -> None:
    """Reads nothing more until the next connection has come and gone."""
    time.sleep(2 * LATER_S)


@pytest.mark.parametrize(
    ("sent", "end", "cause"),
    [
        (b"", Peer.reset, Cause.RESET),
        (plain("413 Too Large", b"no"), leave, Cause.HTTP_STATUS),
        (GOOD, hold, Cause.STREAM_END),
    ],
)
def test_answered_before_the_request_was_sent(
    tmp_path: Path, sent: bytes, end: Callable[[Peer], None], cause: Cause
) -> None:
    """The rest of the request is not owed any more, and the connection not used again."""
    tail = b"x" * 2**24
    bench = Bench(tmp_path, Row(head=HEAD % len(tail)), Row(LATER_S, tail=1))

    def first(peer: Peer) -> None:
        await_stall(peer)
        peer.send(sent)
        end(peer)

    with raw_server(first, answer(GOOD), receive_bytes=65_536) as server:
        ran, after = bench.run(server.port, tails=[tail, b""])
    assert (ran.cause, ran.sent_ns) == (cause, None)
    assert (after.cause, after.conn_reused, after.conn_id) == (Cause.STREAM_END, 0, 1)


# ---------------------------------------------------------------- limits and stops


def test_full_token_buffer_is_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), tokens=2)
    with raw_server(answer(stream(*[token()] * 5, DONE))) as server:
        ran = bench.run(server.port)[0]
    assert ran.content_events == 5
    assert (bench.slab.word("tokens_used"), bench.slab.word("tokens_lost")) == (2, 3)


def test_full_message_buffer_is_counted_once_a_row(tmp_path: Path) -> None:
    refusal = plain("500 Oops", b'{"detail":"out of luck"}')
    bench = Bench(tmp_path, Row(), Row(0.01), Row(0.02), messages=1)
    pieces = [refusal[i : i + 7] for i in range(0, len(refusal), 7)]
    with raw_server(keep_answering(*pieces)) as server:
        rows = bench.run(server.port)
    assert sorted(ran.message or "" for ran in rows) == ["", "", "out of luck"]
    assert bench.slab.word("messages_lost") == 2


def test_no_descriptor_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), Row(0.01))
    told = partial(bench.until, lambda ran: ran.cause == Cause.NO_DESCRIPTOR, 1)

    def script(peer: Peer) -> None:
        peer.request()
        told()
        peer.send(GOOD)
        peer.await_close()

    with raw_server(script) as server:
        first, second = bench.run(server.port, max_connections=1)
    assert (first.cause, second.cause) == (Cause.STREAM_END, Cause.NO_DESCRIPTOR)
    assert (second.errno_code, second.sent_ns) == (errno.EMFILE, None)


def test_stop_word(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), Row(3600.0), Row(3600.0))

    def script(peer: Peer) -> None:
        try:
            peer.request()
            peer.send(CHUNKED + chunk(token()))
            bench.until(lambda ran: ran.content_events)
        finally:
            bench.slab.set_word("stop", 1)
        peer.await_close()

    with raw_server(script) as server:
        rows = bench.run(server.port)
    assert bench.interrupted
    assert [ran.cause for ran in rows] == [Cause.STOPPED, Cause.NOT_DUE, Cause.NOT_DUE]
    assert rows[0].content_events == 1
    assert rows[1].dispatch_ns is None
    assert 0 < bench.slab.word("stopped_ns") <= rows[0].ended_ns


def test_own_figures_add_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *[Row(0.02 * i) for i in range(60)])
    with raw_server(keep_answering(GOOD)) as server:
        rows = bench.run(server.port)
    used = bench.slab.word("seconds_used")
    column = {n: bench.slab.column(f"second_{n}")[:used] for n in ("end_ns", "sent", "skew_max_ns")}
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 60
    assert sum(column["sent"]) == 60
    assert max(column["skew_max_ns"]) == max(r.dispatch_ns - r.intended_ns for r in rows)
    assert list(column["end_ns"]) == sorted(column["end_ns"])
    assert used == max(r.ended_ns for r in rows) // 10**9 + 1  # one line a second, and the last
    assert min(r.dispatch_ns - r.intended_ns for r in rows) >= 0
    assert bench.slab.word("dials") + bench.slab.word("reuses") == 60
    assert (bench.slab.word("in_flight"), bench.slab.word("next_row")) == (0, 60)


@pytest.mark.native_only
@pytest.mark.parametrize(
    ("column", "value"), [("kind", 4), ("target", 1), ("tail", 1), ("head_length", 999)]
)
def test_unsound_slab_is_refused(tmp_path: Path, column: str, value: int) -> None:
    bench = Bench(tmp_path, Row())
    bench.slab.column(column)[0] = value
    with pytest.raises(ClientError, match="damaged slab"):
        bench.run(1)


@pytest.mark.native_only
def test_refused_engine_leaves_other_descriptors_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row())
    before = os.fstat(0)
    with pytest.raises(ClientError, match="targets"):
        bench.run()
    assert os.path.samestat(os.fstat(0), before)


# ---------------------------------------------------------------- kernel stamps


@pytest.mark.native_only
def test_kernel_stamps_stand_between_the_user_s(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), Row(LATER_S))
    waiting = iter((0, 1))

    def script(peer: Peer) -> None:
        for row in waiting:
            peer.request()
            bench.until(lambda ran: ran.acked_kernel_wall_ns, row)
            peer.send(CHUNKED, chunk(token()))
            bench.until(lambda ran: ran.content_events, row)  # in a read of its own
            peer.send(chunk(DONE) + LAST_CHUNK)

    with raw_server(script) as server:
        rows = bench.run(server.port)
    before, wall, after = bench.pair
    epoch_wall = wall + bench.epoch - (before + after) // 2
    slack = 2_000_000  # the two clocks' rates, and a pair that was interrupted
    for ran in rows:
        sent, acked = ran.sent_kernel_wall_ns - epoch_wall, ran.acked_kernel_wall_ns - epoch_wall
        got = ran.first_token_kernel_wall_ns - epoch_wall
        assert ran.dispatch_ns - slack <= sent <= acked <= got <= ran.first_token_ns + slack
    assert bench.slab.word("stamps_refused") == 0
    assert bench.slab.word("stamps_unmatched") == 0
    assert all(stamp > 0 for stamp in bench.tokens("kernel_wall_ns"))


@pytest.mark.native_only
@pytest.mark.parametrize("rehearse", [True, False])
def test_a_rehearsal_reaches_no_target(rehearse: bool, tmp_path: Path) -> None:
    """The server sees the same connections and bytes, whether sends are rehearsed or not."""
    bench = Bench(tmp_path, *(Row(i * 0.05) for i in range(1, 9)))
    requests: list[bytes] = []
    peers: list[Peer] = []

    def script(peer: Peer) -> None:
        peers.append(peer)
        while request := peer.request():
            requests.append(request)
            peer.send(GOOD)

    with raw_server(script) as server:
        rows = bench.run(server.port, rehearse=rehearse)
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 8
    assert len(requests) == 8
    assert len(peers) == bench.slab.word("dials")
    assert (bench.slab.word("rehearsals") > 0) is rehearse
    assert bench.slab.word("rehearsals") <= 2 * 8


@pytest.mark.native_only
def test_without_kernel_stamps(tmp_path: Path) -> None:
    ran = ask(tmp_path, answer(GOOD), stamps=False)
    assert ran.cause == Cause.STREAM_END
    assert ran.sent_kernel_wall_ns is ran.first_token_kernel_wall_ns is None


def test_accepted_then_reset_at_once_is_a_reset_not_a_refusal(tmp_path: Path) -> None:
    """A dying server's kernel does this for 0.1 s: whoever looks first, the class is the same."""
    rows = [Row(at_s=i * 0.005) for i in range(60)]
    with raw_server(Peer.reset) as server:
        ran = Bench(tmp_path, *rows).run(server.port)
    assert {row.cause for row in ran} <= {Cause.RESET, Cause.NO_RESPONSE}


# ---------------------------------------------------------------- secrets that a server echoes


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"bad key SECRET-1234, SECRET-1234!", "bad key ***********, ***********!"),
        (b'{"error":{"message":"no SECRET-1234"}}', "no ***********"),
        (b"x" * 250 + b"SECRET-1234", "x" * 250 + "*" * 6),
        (b"x" * 253 + b"SECRET-1234", "x" * 253 + "SEC"),  # three letters tell nothing
        (b"SECRET-123", "SECRET-123"),
    ],
)
def test_an_echoed_secret_is_blotted_out(body: bytes, kept: str, tmp_path: Path) -> None:
    refusal = answer(plain("401 Unauthorized", body))
    ran = ask(tmp_path, refusal, secrets=[b"SECRET-1234", b"****"])
    assert ran.cause == Cause.HTTP_STATUS
    assert ran.message == kept


def test_an_echoed_secret_in_an_error_event(tmp_path: Path) -> None:
    event = b'data: {"error":{"message":"key SECRET-1234"}}\n\n'
    ran = ask(tmp_path, answer(stream(event)), secrets=[b"SECRET-1234"])
    assert (ran.cause, ran.message) == (Cause.ERROR_EVENT, "key ***********")


# ---------------------------------------------------------------- a dead target beside a live one


def test_a_storm_of_refusals_leaves_the_other_target_s_requests_alone(tmp_path: Path) -> None:
    """2000 refused connects a second for one second, and a live request every 20 ms among them."""
    storm = [Row(i / 2000, target=1) for i in range(2000)]
    live = [Row(i / 50) for i in range(50)]
    bench = Bench(tmp_path, *sorted([*storm, *live], key=lambda row: row.at_s))

    with raw_server(keep_answering(GOOD)) as server:
        rows = bench.run(server.port, closed_port())
    causes = Counter((row.target, ran.cause) for row, ran in zip(bench.rows, rows, strict=True))
    assert causes == {(0, Cause.STREAM_END): 50, (1, Cause.CONNECT): 2000}
    assert all(ran.dispatch_ns >= ran.intended_ns for ran in rows)
    assert {ran.errno_code for ran in rows} == {0, errno.ECONNREFUSED}
    assert bench.slab.word("in_flight") == 0
