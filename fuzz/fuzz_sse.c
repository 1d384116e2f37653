/* Fuzz target of the event-stream splitter and the JSON scanner (csrc/pf_sse.c, csrc/pf_json.c).
 *
 * Does: feeds one body whole, byte by byte and cut as its control bytes say; all three must give
 *       the same events, facts, places and verdict, and so must a naive splitter that holds whole
 *       lines and whole events. The same bytes then go to the JSON scanner alone.
 * Never: judges a fact of an event by itself (tests/test_json_orjson.py does).
 * Plan: `scan` drives as src/percentes_fast/_native.pyx does, byte by byte as csrc/pf_answer.c does
 *       (a last call with nothing left). A scan's list of events is compared with the naive one.
 */
#include "pieces.h"

#include "pf_sse.h"

#define EVENTS (MOST / 8) /* the shortest one has nine bytes */

struct event {
    size_t at; /* bytes consumed when it was told; the naive splitter does not say */
    uint8_t payload;
    uint8_t named; /* its name is error */
    struct pf_json_facts facts;
};

struct list {
    int bad;
    size_t consumed;
    size_t count;
    struct event events[EVENTS];
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

/* ---- the scanner of JSON */

static void check_facts(const struct pf_json_facts *facts) {
    REQUIRE(facts->finish_length <= PF_JSON_FINISH);
    REQUIRE(facts->message_length <= PF_MESSAGE_BYTES);
    REQUIRE(facts->prompt_tokens >= 0 || facts->prompt_tokens == PF_NULL32);
    REQUIRE(facts->completion_tokens >= 0 || facts->completion_tokens == PF_NULL32);
    for (size_t i = 0; i < facts->message_length; i++)
        REQUIRE((uint8_t)facts->message[i] >= 0x20);
}

static void check_json(const struct pf_json *json) {
    REQUIRE(json->depth <= PF_JSON_DEPTH);
    REQUIRE(json->key_length <= PF_JSON_KEY + 1); /* one more: too long to keep */
    REQUIRE(json->hex_left <= 4);
    REQUIRE(json->literal <= 2 && json->literal_at <= 5);
    REQUIRE(json->high == 0 || (json->high & 0xFC00) == 0xD800);
    check_facts(&json->facts);
}

static void check_same_facts(const struct pf_json_facts *a, const struct pf_json_facts *b) {
    REQUIRE(a->visible == b->visible && a->reasoning == b->reasoning && a->tool == b->tool);
    REQUIRE(a->token_ids == b->token_ids && a->choices == b->choices);
    REQUIRE(a->usage == b->usage && a->error == b->error);
    REQUIRE(a->prompt_tokens == b->prompt_tokens);
    REQUIRE(a->completion_tokens == b->completion_tokens);
    REQUIRE(a->finish_length == b->finish_length && a->message_length == b->message_length);
    REQUIRE(same_bytes(a->finish, b->finish, a->finish_length));
    REQUIRE(same_bytes(a->message, b->message, a->message_length));
}

static void check_stays_bad(struct pf_json *json) {
    REQUIRE(pf_json_feed(json, (const uint8_t *)"{}", 2) == PF_BAD);
    REQUIRE(pf_json_feed(json, (const uint8_t *)"", 0) == PF_BAD);
    REQUIRE(pf_json_finish(json) == PF_BAD);
}

static int scan_json(struct pf_json *json, const uint8_t *data, size_t length,
                     const uint8_t *control, enum way way) {
    struct pieces pieces;
    const uint8_t *piece;
    size_t size;
    int result = PF_AGAIN;
    memset(json, filling(way), sizeof *json);
    pf_json_begin(json);
    pieces_begin(&pieces, data, length, control, way);
    while (result == PF_AGAIN && pieces_next(&pieces, &piece, &size)) {
        result = pf_json_feed(json, piece, size);
        check_json(json);
    }
    pieces_end(&pieces);
    REQUIRE(result == PF_AGAIN || result == PF_BAD);
    if (result == PF_BAD) check_stays_bad(json);
    return pf_json_finish(json);
}

/* Past a string's closing quote; `at` is behind the opening one. */
static size_t past_string(const uint8_t *data, size_t length, size_t at) {
    while (at < length && data[at] != '"')
        at += data[at] == '\\' ? 2 : 1;
    return at + 1;
}

/* Is it one object whose brackets match? The scanner may refuse more, never accept others. */
static int is_balanced(const uint8_t *data, size_t length) {
    uint8_t open[PF_JSON_DEPTH];
    size_t depth = 0, objects = 0;
    for (size_t at = 0; at < length;) {
        uint8_t byte = data[at++];
        if (byte == '"') at = past_string(data, length, at);
        if (byte == '{' || byte == '[') {
            if (depth == PF_JSON_DEPTH || (depth == 0 && (byte == '[' || objects++))) return 0;
            open[depth++] = byte == '{' ? '}' : ']';
        }
        if (byte == '}' || byte == ']')
            if (depth == 0 || open[--depth] != byte) return 0;
        if (at > length) return 0;
    }
    return depth == 0 && objects == 1;
}

static void check_json_alone(const uint8_t *data, size_t length, const uint8_t *control) {
    struct pf_json jsons[WAYS];
    int ends[WAYS];
    for (enum way way = WHOLE_INPUT; way < WAYS; way++) {
        ends[way] = scan_json(&jsons[way], data, length, control, way);
        REQUIRE(ends[way] == ends[WHOLE_INPUT]);
        check_same_facts(&jsons[way].facts, &jsons[WHOLE_INPUT].facts);
    }
    if (ends[WHOLE_INPUT] == PF_END) REQUIRE(is_balanced(data, length));
}

/* ---- the splitter of events */

static struct event *add_event(struct list *list, uint8_t payload, int named) {
    REQUIRE(list->count < EVENTS);
    struct event *event = &list->events[list->count++];
    event->at = list->consumed;
    event->payload = payload;
    event->named = named != 0;
    return event;
}

static void check_sse(const struct pf_sse *sse) {
    REQUIRE(sse->after_cr <= 1 && sse->mark_at <= 3 && sse->field_at <= 6);
    REQUIRE(sse->payload <= PF_SSE_OTHER && sse->done_at <= 6);
    REQUIRE(sse->has_data <= 2 && sse->is_error <= 1);
    if (sse->payload == PF_SSE_JSON) check_json(&sse->json);
}

static void tell_event(struct list *list, const struct pf_sse *sse) {
    struct event *event = add_event(list, sse->payload, sse->is_error);
    REQUIRE(sse->payload != PF_SSE_NONE);
    REQUIRE(sse->payload != PF_SSE_OTHER || sse->is_error);
    if (sse->payload != PF_SSE_JSON) return;
    REQUIRE(pf_json_finish(&sse->json) == PF_END);
    event->facts = sse->json.facts;
}

static void feed_piece(struct list *list, struct pf_sse *sse, const uint8_t *piece, size_t length,
                       enum way way) {
    while (!list->bad && length > 0) {
        size_t used = SIZE_MAX;
        int result = pf_sse_feed(sse, piece, length, &used);
        REQUIRE(result == PF_AGAIN || result == PF_ITEM || result == PF_BAD);
        REQUIRE(used > 0 && used <= length);
        REQUIRE(result != PF_AGAIN || used == length);
        check_sse(sse);
        piece += used;
        length -= used;
        list->consumed += used;
        list->bad = result == PF_BAD;
        if (result == PF_ITEM) tell_event(list, sse);
        if (result != PF_ITEM || length > 0 || way != BYTES) continue;
        REQUIRE(pf_sse_feed(sse, piece, 0, &used) == PF_AGAIN && used == 0);
    }
}

static void finish(struct list *list, struct pf_sse *sse) {
    int result = pf_sse_finish(sse);
    REQUIRE(result == PF_AGAIN || result == PF_ITEM || result == PF_BAD);
    check_sse(sse);
    if (list->bad) REQUIRE(result == PF_BAD);
    if (result == PF_BAD) list->bad = 1;
    if (result == PF_ITEM) tell_event(list, sse);
}

static void scan(struct list *list, const uint8_t *data, size_t length, const uint8_t *control,
                 enum way way) {
    struct pf_sse sse;
    struct pieces pieces;
    const uint8_t *piece;
    size_t size;
    memset(&sse, filling(way), sizeof sse);
    pf_sse_begin(&sse);
    list->bad = 0;
    list->consumed = list->count = 0;
    pieces_begin(&pieces, data, length, control, way);
    while (!list->bad && pieces_next(&pieces, &piece, &size))
        feed_piece(list, &sse, piece, size, way);
    pieces_end(&pieces);
    finish(list, &sse);
}

static void check_same_events(const struct list *a, const struct list *b) {
    REQUIRE(a->bad == b->bad && a->count == b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct event *left = &a->events[i], *right = &b->events[i];
        REQUIRE(left->payload == right->payload && left->named == right->named);
        if (left->payload == PF_SSE_JSON) check_same_facts(&left->facts, &right->facts);
    }
}

/* A broken event is told at its line's end at the latest, byte by byte at once. */
static void check_same_places(const struct list *whole, const struct list *bytes) {
    for (size_t i = 0; i < whole->count; i++)
        REQUIRE(whole->events[i].at == bytes->events[i].at);
    REQUIRE(whole->bad ? bytes->consumed <= whole->consumed : bytes->consumed == whole->consumed);
}

/* ---- the naive splitter: whole lines, whole events */

struct naive {
    const uint8_t *at, *end;
    struct list *list;
    int has_data, named;
    size_t length;
    uint8_t joined[MOST];
};

static int is_blank(uint8_t byte) {
    return byte == ' ' || byte == '\t' || byte == '\n';
}

static int is_text(const uint8_t *data, size_t length, const char *text) {
    return length == strlen(text) && same_bytes(data, text, length);
}

/* The next line without its end (LF, CR or CR LF); 0 where nothing is left. */
static int naive_line(struct naive *naive, const uint8_t **line, size_t *length) {
    if (naive->at == naive->end) return 0;
    *line = naive->at;
    while (naive->at < naive->end && *naive->at != '\n' && *naive->at != '\r')
        naive->at++;
    *length = (size_t)(naive->at - *line);
    if (naive->at == naive->end) return 1;
    uint8_t byte = *naive->at++;
    if (byte == '\r' && naive->at < naive->end && *naive->at == '\n') naive->at++;
    return 1;
}

static void naive_add_data(struct naive *naive, const uint8_t *value, size_t length) {
    if (naive->has_data) naive->joined[naive->length++] = '\n';
    naive->has_data = 1;
    if (length) memcpy(naive->joined + naive->length, value, length);
    naive->length += length;
}

static void naive_field(struct naive *naive, const uint8_t *line, size_t length) {
    const uint8_t *colon = memchr(line, ':', length);
    size_t name = colon ? (size_t)(colon - line) : length;
    size_t value = colon ? name + 1 : length;
    if (value < length && line[value] == ' ') value++;
    if (is_text(line, name, "data")) naive_add_data(naive, line + value, length - value);
    if (is_text(line, name, "event")) naive->named = is_text(line + value, length - value, "error");
}

static void naive_json(struct naive *naive, const uint8_t *data, size_t length) {
    struct pf_json json;
    if (scan_json(&json, data, length, NULL, WHOLE_INPUT) == PF_END)
        add_event(naive->list, PF_SSE_JSON, naive->named)->facts = json.facts;
    else
        naive->list->bad = 1;
}

static void naive_judge(struct naive *naive) {
    const uint8_t *data = naive->joined;
    size_t length = naive->length;
    while (length > 0 && is_blank(*data))
        data++, length--;
    while (length > 0 && is_blank(data[length - 1]))
        length--;
    if (length == 0) return;
    if (*data == '{')
        naive_json(naive, data, length);
    else if (is_text(data, length, "[DONE]"))
        add_event(naive->list, PF_SSE_DONE, naive->named);
    else if (naive->named)
        add_event(naive->list, PF_SSE_OTHER, 1);
    else
        naive->list->bad = 1;
}

static void naive_end_event(struct naive *naive) {
    naive_judge(naive);
    naive->has_data = naive->named = 0;
    naive->length = 0;
}

static void naive_scan(struct list *list, const uint8_t *data, size_t length) {
    static struct naive naive;
    const uint8_t *line;
    size_t size, mark = length >= 3 && same_bytes(data, "\xEF\xBB\xBF", 3) ? 3 : 0;
    naive = (struct naive){.at = data + mark, .end = data + length, .list = list};
    list->bad = 0;
    list->consumed = list->count = 0;
    while (!list->bad && naive_line(&naive, &line, &size)) {
        if (size > 0)
            naive_field(&naive, line, size);
        else
            naive_end_event(&naive);
    }
    if (!list->bad) naive_end_event(&naive);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    static struct list lists[WAYS], naive;
    const uint8_t *body = data + CONTROL;
    if (length < CONTROL || length > MOST) return 0;
    for (enum way way = WHOLE_INPUT; way < WAYS; way++)
        scan(&lists[way], body, length - CONTROL, data, way);
    check_same_events(&lists[WHOLE_INPUT], &lists[BYTES]);
    check_same_events(&lists[WHOLE_INPUT], &lists[CUTS]);
    check_same_places(&lists[WHOLE_INPUT], &lists[BYTES]);
    check_same_places(&lists[WHOLE_INPUT], &lists[CUTS]);
    naive_scan(&naive, body, length - CONTROL);
    check_same_events(&lists[WHOLE_INPUT], &naive);
    check_json_alone(body, length - CONTROL, data);
    return 0;
}
