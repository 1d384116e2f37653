# cython: language_level=3, boundscheck=True
"""Thin layer over csrc: buffers in, one call without the GIL, codes out as exceptions.

Never: computes anything, or keeps a pointer past the call.
Plan: the lists of columns and words come from the C headers; engine, fire, clocks and responder are
one function each; the parsers have test entry points that feed them any pieces.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport ECONNRESET, ESRCH
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from posix.unistd cimport dup

from percentes_fast.errors import ClientError

cdef extern from "<sys/uio.h>":
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>":
    struct sockaddr_storage:
        unsigned short ss_family
    ctypedef unsigned int socklen_t
    enum:
        AF_INET
        AF_INET6

cdef extern from "<netinet/in.h>":
    struct in_addr:
        pass
    struct in6_addr:
        pass
    struct sockaddr_in:
        unsigned short sin_family
        uint16_t sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        unsigned short sin6_family
        uint16_t sin6_port
        in6_addr sin6_addr
        uint32_t sin6_scope_id
    uint16_t htons(uint16_t)

cdef extern from "<arpa/inet.h>":
    int inet_pton(int family, const char *text, void *to)

cdef extern from "pf_clock.h":
    ctypedef int64_t pf_ns
    pf_ns pf_clock_now() nogil
    pf_ns pf_clock_read(int clock) nogil
    pf_ns pf_clock_wait(pf_ns due, pf_ns spin_ns) nogil

cdef extern from "<time.h>":
    enum:
        CLOCK_REALTIME

cdef extern from "pf_slab.h":
    """
    struct pf_named { const char *name; size_t size; int64_t null; };
    #define X(name, type, null) {#name, sizeof(type), (int64_t)(null)},
    static const struct pf_named PF_COLUMN_LIST[] = {PF_COLUMNS(X) {0, 0, 0}};
    #undef X
    #define X(name, type) {#name, sizeof(type), 0},
    static const struct pf_named PF_TOKEN_LIST[] = {PF_TOKEN_COLUMNS(X) {0, 0, 0}};
    static const struct pf_named PF_SECOND_LIST[] = {PF_SECOND_COLUMNS(X) {0, 0, 0}};
    #undef X
    #define X(name) #name,
    static const char *const PF_WORD_LIST[] = {PF_WORDS(X) 0};
    #undef X
    static ptrdiff_t pf_column_offset(const struct pf_slab *slab, const char *name) {
    #define X(column, type, null) if (strcmp(name, #column) == 0) return (char *)slab->column - (char *)slab->words;
        PF_COLUMNS(X)
    #undef X
    #define X(column, type) if (strcmp(name, #column) == 0) return (char *)slab->column - (char *)slab->words;
        PF_TOKEN_COLUMNS(X)
        PF_SECOND_COLUMNS(X)
    #undef X
        if (strcmp(name, "messages") == 0) return slab->messages - (char *)slab->words;
        if (strcmp(name, "finish_names") == 0) return slab->finish_names - (char *)slab->words;
        if (strcmp(name, "replica_names") == 0) return slab->replica_names - (char *)slab->words;
        return -1;
    }
    """
    struct pf_named:
        const char *name
        size_t size
        int64_t null
    const pf_named *PF_COLUMN_LIST
    const pf_named *PF_TOKEN_LIST
    const pf_named *PF_SECOND_LIST
    const char *const *PF_WORD_LIST
    struct pf_slab:
        int64_t *words
    struct pf_slab_size:
        int64_t rows, tokens, seconds, messages
    size_t pf_slab_bytes(const pf_slab_size *size)
    void pf_slab_format(void *base, const pf_slab_size *size, int64_t worker) nogil
    int pf_slab_open(pf_slab *slab, void *base, size_t size)
    ptrdiff_t pf_column_offset(const pf_slab *slab, const char *name)

cdef extern from "pf_conn.h":
    enum:
        PF_CONN_IDLE
        PF_CONN_FREE
    struct pf_conn:
        uint8_t state
    struct pf_conns:
        pass
    pf_conn *pf_conns_oldest(pf_conns *conns, int kind)

cdef extern from "pf_engine.h":
    enum:
        PF_TARGETS
        PF_HTTP_NAME
    struct pf_target:
        sockaddr_storage address
        socklen_t length
    struct pf_engine_setup:
        const uint8_t *heads
        size_t heads_bytes
        const iovec *tails
        int32_t tail_count
        pf_target *targets
        int32_t target_count
        pf_ns *timeout_ns
        uint8_t *plain
        pf_ns spin_ns
        pf_ns idle_reuse_ns
        int32_t max_connections
        int32_t parent_pid
        uint8_t end_by_finish
        uint8_t stamps
        uint8_t busy
        uint8_t rehearse
        const iovec *secrets
        int32_t secret_count
        char *replica_header
    struct pf_engine:
        int rehearses
        pf_conns conns
    int pf_engine_init(pf_engine *engine, const pf_engine_setup *setup, void *base, size_t size)
    int pf_engine_run(pf_engine *engine) nogil
    void pf_engine_destroy(pf_engine *engine)

cdef extern from "pf_sock.h":
    enum:
        PF_SOCK_OK
        PF_SOCK_FAILED
        PF_SOCK_EOF

cdef extern from "pf_record.h":
    """
    #define PF_NULL_NS PF_NULL64
    """
    const pf_ns PF_NULL_NS
    enum pf_cause:
        PF_CAUSE_DEADLINE

cdef extern from "pf_exchange.h":
    pf_conn *pf_exchange_adopt(pf_engine *engine, int64_t row, int fd)
    int pf_exchange_take(pf_engine *engine, pf_conn *conn, int result, int error,
                         const uint8_t *data, size_t length, pf_ns stamp_wall)
    void pf_exchange_abandon(pf_engine *engine, pf_conn *conn, pf_cause cause)

cdef extern from "pf_fire.h":
    enum:
        PF_FIRE_ENDED
    struct pf_fire_times:
        pf_ns before
        pf_ns after
    int pf_fire_open(int pid)
    int pf_fire_signal(int pidfd, int group, int signal, pf_ns at, pf_fire_times *times) nogil

cdef extern from "pf_responder.h":
    struct pf_responder_stats:
        int64_t requests, events, late_max_ns, late_sum_ns
    struct pf_responder_log:
        int64_t (*requests)[3]
        int64_t (*events)[3]
        int64_t requests_capacity
        int64_t events_capacity
    int pf_responder_run(int listener, int parent_pid, pf_ns spin_ns, int *stop,
                         const pf_responder_log *log, pf_responder_stats *stats) nogil

cdef extern from "pf_result.h":
    enum:
        PF_BAD
        PF_AGAIN
        PF_ITEM
        PF_END
    struct pf_span:
        const uint8_t *data
        size_t length

cdef extern from "pf_http.h":
    struct pf_http:
        int16_t status
        uint8_t head_done
        uint8_t close
        uint8_t replica_length
        char *replica
    void pf_http_begin(pf_http *http, const char *replica_header)
    int pf_http_feed(pf_http *http, const uint8_t *data, size_t length, size_t *used, pf_span *body)
    int pf_http_finish(const pf_http *http)

cdef extern from "pf_json.h":
    struct pf_json_facts:
        uint8_t visible, reasoning, tool, token_ids, choices, usage, error, finish_length
        uint16_t message_length
        int32_t prompt_tokens, completion_tokens
        char *finish
        char *message
    struct pf_json:
        pf_json_facts facts
    void pf_json_begin(pf_json *json)
    int pf_json_feed(pf_json *json, const uint8_t *data, size_t length)
    int pf_json_finish(const pf_json *json)

cdef extern from "pf_sse.h":
    enum:
        PF_SSE_JSON
        PF_SSE_DONE
    struct pf_sse:
        uint8_t payload
        uint8_t is_error
        pf_json json
    void pf_sse_begin(pf_sse *sse)
    int pf_sse_feed(pf_sse *sse, const uint8_t *data, size_t length, size_t *used)
    int pf_sse_finish(pf_sse *sse)


cdef list _named(const pf_named *items):
    found = []
    cdef int i = 0
    while items[i].name != NULL:
        found.append((items[i].name.decode(), f"i{items[i].size}", items[i].null))
        i += 1
    return found


cdef dict _words():
    found = {}
    cdef int i = 0
    while PF_WORD_LIST[i] != NULL:
        found[PF_WORD_LIST[i].decode()] = i
        i += 1
    return found


COLUMNS = tuple(_named(PF_COLUMN_LIST))
TOKEN_COLUMNS = tuple(_named(PF_TOKEN_LIST))
SECOND_COLUMNS = tuple(_named(PF_SECOND_LIST))
WORDS = _words()
CONNECTION_BYTES = sizeof(pf_conn)


# ---------------------------------------------------------------- clocks

def clock_now():
    """CLOCK_MONOTONIC in ns."""
    return pf_clock_now()


def clock_pair():
    """(monotonic ns, realtime ns, monotonic ns), read back to back."""
    cdef pf_ns before = pf_clock_now()
    cdef pf_ns wall = pf_clock_read(CLOCK_REALTIME)
    cdef pf_ns after = pf_clock_now()
    return before, wall, after


def clock_cost(int reads):
    """Mean cost of one clock read over `reads`, in ns."""
    cdef pf_ns before, last = 0
    cdef int i
    with nogil:
        before = pf_clock_now()
        for i in range(reads):
            last = pf_clock_now()
    return (last - before) / reads


def wait_overshoot(int waits, pf_ns period, pf_ns spin_ns):
    """How late each of `waits` waits, `period` ns apart, ended: list of ns (sleep, then spin)."""
    cdef pf_ns *late = <pf_ns *>calloc(waits, sizeof(pf_ns))
    cdef pf_ns due
    cdef int i
    if late == NULL:
        raise MemoryError
    with nogil:
        due = pf_clock_now()
        for i in range(waits):
            due += period
            late[i] = pf_clock_wait(due, spin_ns) - due
    found = [late[i] for i in range(waits)]
    free(late)
    return found


# ---------------------------------------------------------------- slabs

def slab_bytes(int64_t rows, int64_t tokens, int64_t seconds, int64_t messages):
    """Bytes of a slab of that size."""
    cdef pf_slab_size size = pf_slab_size(rows, tokens, seconds, messages)
    return pf_slab_bytes(&size)


def slab_format(unsigned char[::1] slab not None, int64_t rows, int64_t tokens, int64_t seconds,
                int64_t messages, int64_t worker):
    """Writes header and sentinels into a mapping of exactly `slab_bytes` of that size."""
    cdef pf_slab_size size = pf_slab_size(rows, tokens, seconds, messages)
    if <size_t>slab.shape[0] != pf_slab_bytes(&size):
        raise ClientError("slab: the mapping has another size than its columns need")
    with nogil:
        pf_slab_format(&slab[0], &size, worker)


def slab_offsets(unsigned char[::1] slab not None):
    """Name -> byte offset of every column of a formatted slab."""
    cdef pf_slab bound
    if slab.shape[0] < 8 or pf_slab_open(&bound, &slab[0], slab.shape[0]) != 0:
        raise ClientError("slab: not a slab of this version")
    names = [name for name, _, _ in COLUMNS + TOKEN_COLUMNS + SECOND_COLUMNS]
    names += ["messages", "finish_names", "replica_names"]
    return {name: pf_column_offset(&bound, name.encode()) for name in names}


# ---------------------------------------------------------------- engine

cdef int _address(pf_target *target, str host, int port) except -1:
    cdef bytes text = host.encode()
    cdef sockaddr_in *v4 = <sockaddr_in *>&target.address
    cdef sockaddr_in6 *v6 = <sockaddr_in6 *>&target.address
    memset(target, 0, sizeof(pf_target))
    if inet_pton(AF_INET, text, &v4.sin_addr) == 1:
        v4.sin_family = AF_INET
        v4.sin_port = htons(<uint16_t>port)
        target.length = sizeof(sockaddr_in)
    elif inet_pton(AF_INET6, text, &v6.sin6_addr) == 1:
        v6.sin6_family = AF_INET6
        v6.sin6_port = htons(<uint16_t>port)
        target.length = sizeof(sockaddr_in6)
    else:
        raise ClientError(f"target address {host!r} is not an IP address: resolve names first")
    return 0


cdef class Engine:
    """One worker's engine over a formatted slab.

    heads: every request's own first bytes, one after the other; tails: shared last bytes;
    targets: (IP address, port) pairs; timeouts_ns and plain: one a kind, in the order of the codes.
    """

    cdef pf_engine *engine
    cdef iovec *tails
    cdef iovec *secrets
    cdef object _kept

    def __cinit__(self, unsigned char[::1] slab not None, const unsigned char[::1] heads not None,
                  list tails not None, list targets not None, timeouts_ns, plain, *,
                  pf_ns spin_ns=500_000, pf_ns idle_reuse_ns=4_000_000_000,
                  int max_connections=1024, int parent_pid=0, bint end_by_finish=False,
                  bint stamps=True, bint busy=False, bint rehearse=True,
                  secrets=(), str replica_header=""):
        cdef pf_engine_setup setup
        memset(&setup, 0, sizeof(setup))
        self.engine = <pf_engine *>calloc(1, sizeof(pf_engine))
        secrets = [secret for secret in secrets if secret and set(secret) != {42}]
        self.tails = <iovec *>calloc(max(1, len(tails)), sizeof(iovec))
        self.secrets = <iovec *>calloc(max(1, len(secrets)), sizeof(iovec))
        if self.engine == NULL or self.tails == NULL or self.secrets == NULL:
            raise MemoryError
        self._kept = (slab, heads, tails, secrets)
        self._fill(self.tails, tails)
        self._fill(self.secrets, secrets)
        setup.secrets, setup.secret_count = self.secrets, len(secrets)
        if not 0 < len(targets) <= PF_TARGETS:
            raise ClientError(f"between 1 and {PF_TARGETS} targets are possible, not {len(targets)}")
        for i, (host, port) in enumerate(targets):
            _address(&setup.targets[i], host, port)
        for i in range(4):
            setup.timeout_ns[i] = timeouts_ns[i]
            setup.plain[i] = plain[i]
        header = replica_header.lower().encode()
        if len(header) > PF_HTTP_NAME:
            raise ClientError(f"replica header: at most {PF_HTTP_NAME} bytes, not {len(header)}")
        memcpy(setup.replica_header, <const char *>header, len(header))
        setup.heads = &heads[0] if heads.shape[0] else NULL
        setup.heads_bytes = heads.shape[0]
        setup.tails = self.tails
        setup.tail_count = len(tails)
        setup.target_count = len(targets)
        setup.spin_ns, setup.idle_reuse_ns = spin_ns, idle_reuse_ns
        setup.max_connections, setup.parent_pid = max_connections, parent_pid
        setup.end_by_finish, setup.stamps, setup.busy = end_by_finish, stamps, busy
        setup.rehearse = rehearse
        result = pf_engine_init(self.engine, &setup, &slab[0], slab.shape[0])
        if result != 0:
            free(self.engine)
            self.engine = NULL
            raise ClientError("engine: no memory or no descriptors left, or a damaged slab"
                              f" (errno {-result})")

    cdef _fill(self, iovec *vectors, list texts):
        cdef const unsigned char[::1] view
        for i, text in enumerate(texts):
            view = text
            vectors[i].iov_base = <void *>&view[0] if view.shape[0] else NULL
            vectors[i].iov_len = view.shape[0]

    def answer(self, int64_t row, pieces, str end):
        """Gives a row an answer without a socket: each piece is a read; then `end`: "fin", "rst",
        or "deadline". True when the connection went back to the pool. For tests of the wire.
        """
        cdef pf_conn *conn = pf_exchange_adopt(self.engine, row, dup(2))
        cdef bytes piece
        cdef int here = conn != NULL
        if conn == NULL:
            raise ClientError("engine: the connection table is full")
        for piece in pieces:
            if here:
                here = pf_exchange_take(self.engine, conn, PF_SOCK_OK, 0,
                                        <const uint8_t *><const char *>piece, len(piece), PF_NULL_NS)
        pooled = bool(here) and conn.state == PF_CONN_IDLE
        if here and end == "deadline" and not pooled:
            pf_exchange_abandon(self.engine, conn, PF_CAUSE_DEADLINE)
        elif here:
            pf_exchange_take(self.engine, conn, PF_SOCK_EOF if end == "fin" else PF_SOCK_FAILED,
                             ECONNRESET, NULL, 0, PF_NULL_NS)
        return pooled

    @property
    def rehearses(self):
        """Are sends rehearsed? False where that is off or loopback is not there."""
        return bool(self.engine.rehearses)

    def run(self):
        """Runs the schedule to its end without the GIL; True when it was interrupted."""
        cdef int interrupted
        with nogil:
            interrupted = pf_engine_run(self.engine)
        return bool(interrupted)

    def __dealloc__(self):
        if self.engine != NULL:
            pf_engine_destroy(self.engine)
            free(self.engine)
        free(self.tails)
        free(self.secrets)


# ---------------------------------------------------------------- the signal

def pidfd_open(int pid):
    """pidfd of a living process; OSError when there is none."""
    cdef int fd = pf_fire_open(pid)
    if fd < 0:
        raise OSError(-fd, f"pidfd_open({pid})")
    return fd


def fire(int pidfd, int group, int signal, pf_ns at):
    """Signals at `at` (CLOCK_MONOTONIC ns) a pidfd's process, or a group where group > 0.

    Returns (before ns, after ns, errno): the clock reads around the signal. ProcessLookupError, and
    no signal, where the pidfd's process had ended by then.
    """
    cdef pf_fire_times times
    cdef int result
    with nogil:
        result = pf_fire_signal(pidfd, group, signal, at, &times)
    if result == PF_FIRE_ENDED:
        raise ProcessLookupError(ESRCH, "has ended")
    return times.before, times.after, -result


# ---------------------------------------------------------------- known-timing responder

def respond(int listener, int parent_pid, pf_ns spin_ns, int[::1] stop not None,
            int64_t[:, ::1] requests=None, int64_t[:, ::1] events=None):
    """Serves a listening socket until stop[0] is not 0 or the parent is gone.

    requests, events: int64 arrays of three columns that what was seen is written to: (index, kernel
    arrival on the wall clock, user arrival) and (index, event, time before its send). Returns the
    responder's own figures; `requests` and `events` there count also what found no room.
    """
    cdef pf_responder_stats stats
    cdef pf_responder_log log
    cdef int result
    memset(&log, 0, sizeof(log))
    if requests is not None and requests.shape[0] > 0 and requests.shape[1] == 3:
        log.requests = <int64_t (*)[3]>&requests[0, 0]
        log.requests_capacity = requests.shape[0]
    if events is not None and events.shape[0] > 0 and events.shape[1] == 3:
        log.events = <int64_t (*)[3]>&events[0, 0]
        log.events_capacity = events.shape[0]
    with nogil:
        result = pf_responder_run(listener, parent_pid, spin_ns, &stop[0], &log, &stats)
    if result != 0:
        raise ClientError(f"responder: errno {-result}")
    return {"requests": stats.requests, "events": stats.events,
            "late_max_ns": stats.late_max_ns, "late_sum_ns": stats.late_sum_ns}


# ---------------------------------------------------------------- parsers, for tests

cdef dict _facts(pf_json_facts *facts):
    return {
        "visible": bool(facts.visible), "reasoning": bool(facts.reasoning),
        "tool": bool(facts.tool), "token_ids": bool(facts.token_ids),
        "choices": bool(facts.choices), "usage": bool(facts.usage), "error": bool(facts.error),
        "prompt_tokens": None if facts.prompt_tokens < 0 else facts.prompt_tokens,
        "completion_tokens": None if facts.completion_tokens < 0 else facts.completion_tokens,
        "finish": PyBytes_FromStringAndSize(facts.finish, facts.finish_length),
        "message": PyBytes_FromStringAndSize(facts.message, facts.message_length),
    }


def scan_json(pieces):
    """Facts of one event fed in pieces, or None where it is not one balanced object."""
    cdef pf_json json
    cdef bytes piece
    pf_json_begin(&json)
    for piece in pieces:
        pf_json_feed(&json, <const uint8_t *><const char *>piece, len(piece))
    return _facts(&json.facts) if pf_json_finish(&json) == PF_END else None


cdef object _event(pf_sse *sse):
    if sse.payload == PF_SSE_DONE:
        return "done"
    if sse.payload == PF_SSE_JSON:
        return {**_facts(&sse.json.facts), "named_error": bool(sse.is_error)}
    return "error"


def scan_sse(pieces):
    """Events of a body fed in pieces: facts, "done", "error"; "bad" last where one is broken."""
    cdef pf_sse sse
    cdef bytes piece
    cdef size_t used, at
    cdef int result
    events = []
    pf_sse_begin(&sse)
    for piece in pieces:
        at = 0
        while at < <size_t>len(piece):
            result = pf_sse_feed(&sse, <const uint8_t *><const char *>piece + at,
                                 len(piece) - at, &used)
            at += used
            if result == PF_BAD:
                return [*events, "bad"]
            if result == PF_ITEM:
                events.append(_event(&sse))
    result = pf_sse_finish(&sse)
    if result == PF_BAD:
        events.append("bad")
    if result == PF_ITEM:
        events.append(_event(&sse))
    return events


def scan_http(pieces, bint closed=False, str replica_header=""):
    """One response fed in pieces: dict of state (again, end, bad, cut), status, body, rest, close."""
    cdef pf_http http
    cdef pf_span span
    cdef bytes piece, header = replica_header.encode()
    cdef size_t used, at
    cdef int result = PF_AGAIN
    body, rest = [], b""
    pf_http_begin(&http, <const char *>header if header else NULL)
    for piece in pieces:
        if result != PF_AGAIN:
            rest += piece
            continue
        at = 0
        while True:
            result = pf_http_feed(&http, <const uint8_t *><const char *>piece + at,
                                  len(piece) - at, &used, &span)
            at += used
            if result != PF_ITEM:
                break
            body.append(PyBytes_FromStringAndSize(<const char *>span.data, span.length))
        rest += piece[at:]
    state = {PF_AGAIN: "again", PF_END: "end", PF_BAD: "bad"}[result]
    if closed and result == PF_AGAIN:
        state = "end" if pf_http_finish(&http) == PF_END else "cut"
    return {"state": state, "status": http.status if http.head_done else None,
            "body": b"".join(body), "rest": rest, "close": bool(http.close),
            "replica": PyBytes_FromStringAndSize(http.replica, http.replica_length)}
