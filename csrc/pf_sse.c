/* Sans-IO server-sent events. See pf_sse.h.
 *
 * Plan: a state per place in a line; the payload's first byte decides whether it is JSON, [DONE] or
 * something else; bytes of a JSON payload go straight to the scanner, in the longest runs.
 */
#include "pf_sse.h"

#include <string.h>

enum line {
    START,
    FIELD_DATA, /* matching "data" */
    FIELD_EVENT,
    AFTER_COLON, /* one space may be dropped */
    DATA,
    EVENT_NAME,
    SKIP
};

static const char DATA_NAME[] = "data";
static const char EVENT_FIELD[] = "event";
static const char ERROR_NAME[] = "error";
static const char DONE_MARK[] = "[DONE]";
static const char USUAL[] = {'d', 'a', 't', 'a', ':', ' '};
static const uint8_t BYTE_ORDER_MARK[] = {0xEF, 0xBB, 0xBF};

static void begin_event(struct pf_sse *sse) {
    sse->payload = PF_SSE_NONE;
    sse->done_at = 0;
    sse->has_data = 0;
    sse->is_error = 0;
    sse->line = START;
}

void pf_sse_begin(struct pf_sse *sse) {
    memset(sse, 0, offsetof(struct pf_sse, json));
    begin_event(sse);
}

static int take_done(struct pf_sse *sse, uint8_t byte) {
    if (sse->done_at < sizeof DONE_MARK - 1) {
        if (byte != (uint8_t)DONE_MARK[sse->done_at++]) return PF_BAD;
        return PF_AGAIN;
    }
    return byte == ' ' || byte == '\t' || byte == '\n' ? PF_AGAIN : PF_BAD;
}

/* Words that are no JSON: they may be an error's text. */
static void keep_words(struct pf_sse *sse, const uint8_t *data, size_t length) {
    struct pf_json_facts *facts = &sse->json.facts;
    for (size_t i = 0; i < length && facts->message_length < PF_MESSAGE_BYTES; i++)
        facts->message[facts->message_length++] = (char)(data[i] < 0x20 ? ' ' : data[i]);
}

/* A broken payload stays broken: the event is judged at its end, wherever reads were cut. */
static void take_payload(struct pf_sse *sse, const uint8_t *data, size_t length) {
    size_t i = 0;
    while (sse->payload == PF_SSE_NONE && i < length &&
           (data[i] == ' ' || data[i] == '\t' || data[i] == '\n'))
        i++;
    if (i == length) return;
    if (sse->payload == PF_SSE_NONE) {
        sse->payload = data[i] == '{' ? PF_SSE_JSON : data[i] == '[' ? PF_SSE_DONE : PF_SSE_OTHER;
        pf_json_begin(&sse->json);
    }
    if (sse->payload == PF_SSE_JSON)
        pf_json_feed(&sse->json, data + i, length - i);
    else
        keep_words(sse, data + i, length - i);
    for (; i < length && sse->payload == PF_SSE_DONE; i++)
        if (take_done(sse, data[i]) == PF_BAD) sse->payload = PF_SSE_OTHER;
}

/* The event's verdict, at its blank line or at the end of the body: its name may follow its data.
 */
static int end_event(struct pf_sse *sse) {
    if (sse->payload == PF_SSE_JSON) return pf_json_finish(&sse->json) == PF_END ? PF_ITEM : PF_BAD;
    if (sse->payload == PF_SSE_DONE && sse->done_at == sizeof DONE_MARK - 1) return PF_ITEM;
    if (sse->payload == PF_SSE_DONE) sse->payload = PF_SSE_OTHER; /* only its beginning came */
    if (sse->payload == PF_SSE_OTHER) /* an error event in plain words */
        return sse->is_error ? PF_ITEM : PF_BAD;
    return PF_AGAIN; /* no data, or an empty one: a ping */
}

static void begin_line(struct pf_sse *sse, uint8_t byte) {
    sse->field_at = 1;
    sse->line = byte == 'd' ? FIELD_DATA : byte == 'e' ? FIELD_EVENT : SKIP;
}

static void take_field(struct pf_sse *sse, uint8_t byte) {
    const char *name = sse->line == FIELD_DATA ? DATA_NAME : EVENT_FIELD;
    size_t length = strlen(name);
    if (sse->field_at < length && byte == (uint8_t)name[sse->field_at]) {
        sse->field_at++;
    } else if (sse->field_at == length && byte == ':') {
        sse->field_at = (uint8_t)(sse->line == FIELD_DATA ? 0 : 1);
        sse->line = AFTER_COLON;
    } else {
        sse->line = SKIP;
    }
}

static void take_event_name(struct pf_sse *sse, uint8_t byte) {
    size_t length = sizeof ERROR_NAME - 1;
    if (sse->field_at < length && byte == (uint8_t)ERROR_NAME[sse->field_at])
        sse->field_at++;
    else
        sse->field_at = (uint8_t)(length + 1); /* another name */
}

/* A data line begins: the second and later ones of an event are joined with LF. */
static void begin_data(struct pf_sse *sse) {
    static const uint8_t LINE_FEED = '\n';
    sse->line = DATA;
    if (sse->has_data) take_payload(sse, &LINE_FEED, 1);
    sse->has_data = 1;
}

/* After the colon; returns 1 when the byte was the space that is dropped. */
static int take_after_colon(struct pf_sse *sse, uint8_t byte) {
    if (sse->field_at == 0) {
        begin_data(sse);
    } else {
        sse->line = EVENT_NAME;
        sse->field_at = 0;
    }
    return byte == ' ';
}

static int names_event(const struct pf_sse *sse) {
    return sse->line == EVENT_NAME || (sse->line == AFTER_COLON && sse->field_at == 1) ||
           (sse->line == FIELD_EVENT && sse->field_at == sizeof EVENT_FIELD - 1);
}

static int end_line(struct pf_sse *sse) {
    if (sse->line == START) return end_event(sse);
    if (sse->line == AFTER_COLON && sse->field_at == 0) begin_data(sse);
    if (names_event(sse)) /* the last name counts */
        sse->is_error = sse->line == EVENT_NAME && sse->field_at == sizeof ERROR_NAME - 1;
    if (sse->line == FIELD_DATA && sse->field_at == sizeof DATA_NAME - 1) begin_data(sse);
    sse->line = START;
    return PF_AGAIN;
}

static int skip_mark(struct pf_sse *sse, uint8_t byte) {
    if (sse->mark_at >= 3) return 0;
    if (byte == BYTE_ORDER_MARK[sse->mark_at]) {
        sse->mark_at++;
        return 1;
    }
    if (sse->mark_at > 0) sse->line = SKIP; /* the first name begins like a mark, but is none */
    sse->mark_at = 3;
    return 0;
}

static size_t run_of_line(const uint8_t *data, size_t length) {
    const uint8_t *end = memchr(data, '\n', length);
    if (end) length = (size_t)(end - data);
    end = memchr(data, '\r', length);
    return end ? (size_t)(end - data) : length;
}

static void take_name_byte(struct pf_sse *sse, uint8_t byte) {
    if (sse->line == START)
        begin_line(sse, byte);
    else if (sse->line == EVENT_NAME)
        take_event_name(sse, byte);
    else
        take_field(sse, byte);
}

/* Bytes of one line without its end; returns how many it took. */
static size_t take_line(struct pf_sse *sse, const uint8_t *data, size_t length) {
    if (sse->line == START && length > sizeof USUAL && memcmp(data, USUAL, sizeof USUAL) == 0) {
        begin_data(sse); /* what most lines begin with, at once */
        return sizeof USUAL;
    }
    if (sse->line == AFTER_COLON && take_after_colon(sse, data[0])) return 1;
    if (sse->line == DATA || sse->line == SKIP) {
        size_t run = run_of_line(data, length);
        if (sse->line == DATA) take_payload(sse, data, run);
        return run;
    }
    take_name_byte(sse, data[0]);
    return 1;
}

int pf_sse_feed(struct pf_sse *sse, const uint8_t *data, size_t length, size_t *used) {
    size_t i = 0;
    int result = PF_AGAIN;
    if (sse->payload != PF_SSE_NONE && sse->line == START && sse->has_data == 2) begin_event(sse);
    while (i < length && result == PF_AGAIN) {
        uint8_t byte = data[i];
        if (skip_mark(sse, byte) || (sse->after_cr && byte == '\n')) {
            sse->after_cr = 0;
            i++;
            continue;
        }
        sse->after_cr = byte == '\r';
        if (byte != '\n' && byte != '\r') {
            i += take_line(sse, data + i, length - i);
            continue;
        }
        i++;
        int blank = sse->line == START;
        result = end_line(sse);
        if (blank && result == PF_AGAIN) begin_event(sse);
    }
    if (result == PF_ITEM) sse->has_data = 2; /* reported: the next call begins another event */
    *used = i;
    return result;
}

int pf_sse_finish(struct pf_sse *sse) {
    if (sse->has_data == 2) begin_event(sse);
    if (sse->line != START) end_line(sse);
    return end_event(sse);
}
