/* What an answer says. See pf_answer.h.
 *
 * Plan: a token is a content event by SPEC's rule: text, reasoning, tool arguments, token ids, or a
 * running usage count that grew. Usage runs only where an earlier event of the same stream carried
 * it: a server that reports usage once, beside the finish reason, is not reporting a token.
 */
#include "pf_answer.h"

#include <string.h>

static int16_t intern(struct pf_engine *engine, char *names, enum pf_word used_word,
                      const char *text, size_t length) {
    int64_t used = engine->slab.words[used_word];
    if (length > PF_NAME_BYTES) length = PF_NAME_BYTES;
    for (int64_t i = 0; i < used; i++) {
        const char *name = names + i * PF_NAME_BYTES;
        if (memcmp(name, text, length) == 0 && (length == PF_NAME_BYTES || name[length] == 0))
            return (int16_t)i;
    }
    if (used >= PF_NAMES) {
        pf_slab_add(&engine->slab, PF_WORD_names_lost, 1);
        return PF_NULL16;
    }
    memcpy(names + used * PF_NAME_BYTES, text, length);
    pf_slab_store(&engine->slab, used_word, used + 1);
    return (int16_t)used;
}

#define SHORTEST_SECRET 4 /* bytes of one cut at the slot's end that tell something */
#define MESSAGE_LOST (-1) /* in message_slot: there was a text, but no slot for it */

/* The row's message slot, given out at the first use; NULL when all are taken. */
static char *message_slot(struct pf_engine *engine, int32_t row) {
    struct pf_slab *slab = &engine->slab;
    if (slab->message_slot[row] == MESSAGE_LOST) return NULL;
    if (slab->message_slot[row] < 0) {
        if (slab->words[PF_WORD_messages_used] >= slab->words[PF_WORD_messages_capacity]) {
            pf_slab_add(slab, PF_WORD_messages_lost, 1);
            slab->message_slot[row] = MESSAGE_LOST;
            return NULL;
        }
        slab->message_slot[row] = (int32_t)pf_slab_add(slab, PF_WORD_messages_used, 1);
    }
    return slab->messages + (size_t)slab->message_slot[row] * PF_MESSAGE_BYTES;
}

static void keep_text(struct pf_engine *engine, int32_t row, const char *text, size_t length) {
    char *slot = length > 0 ? message_slot(engine, row) : NULL;
    if (!slot) return;
    memset(slot, 0, PF_MESSAGE_BYTES);
    memcpy(slot, text, length < PF_MESSAGE_BYTES ? length : PF_MESSAGE_BYTES);
}

/* Adds a piece to a text that comes in several; its end is its first zero, so none is kept. */
static void add_text(struct pf_engine *engine, int32_t row, const uint8_t *text, size_t length) {
    char *slot = length > 0 ? message_slot(engine, row) : NULL;
    if (!slot) return;
    size_t at = strnlen(slot, PF_MESSAGE_BYTES);
    for (size_t i = 0; i < length && at < PF_MESSAGE_BYTES; i++)
        slot[at++] = (char)(text[i] ? text[i] : ' ');
}

/* Bytes at the end of a full slot that a secret begins with, or 0. */
static size_t cut_secret(const char *slot, const struct iovec *secret) {
    size_t longest = secret->iov_len < PF_MESSAGE_BYTES ? secret->iov_len : PF_MESSAGE_BYTES;
    for (size_t n = longest; n >= SHORTEST_SECRET; n--)
        if (memcmp(slot + PF_MESSAGE_BYTES - n, secret->iov_base, n) == 0) return n;
    return 0;
}

void pf_answer_redact(struct pf_engine *engine, int64_t row) {
    int32_t at = engine->slab.message_slot[row];
    if (at < 0 || engine->setup.secret_count == 0) return;
    char *slot = engine->slab.messages + (size_t)at * PF_MESSAGE_BYTES;
    for (int32_t i = 0; i < engine->setup.secret_count; i++) {
        const struct iovec *secret = &engine->setup.secrets[i];
        char *found;
        while (secret->iov_len > 0 && secret->iov_len <= PF_MESSAGE_BYTES &&
               (found = memmem(slot, PF_MESSAGE_BYTES, secret->iov_base, secret->iov_len)))
            memset(found, '*', secret->iov_len);
        size_t cut = cut_secret(slot, secret);
        memset(slot + PF_MESSAGE_BYTES - cut, '*', cut);
    }
}

void pf_answer_head(struct pf_engine *engine, struct pf_conn *conn) {
    struct pf_http *http = &conn->http;
    if (!http->head_done || conn->state == PF_CONN_DRAINING) return;
    if (engine->slab.headers_ns[conn->row] != PF_NULL64) return;
    engine->slab.headers_ns[conn->row] = engine->read_ns;
    engine->slab.http_status[conn->row] = http->status;
    if (http->replica_length > 0)
        engine->slab.replica[conn->row] =
            intern(engine, engine->slab.replica_names, PF_WORD_replica_names_used, http->replica,
                   http->replica_length);
    if (http->status != 200) pf_json_begin(&conn->sse.json);
}

/* An answer that is not 200: its JSON error text, or else its first bytes as they are. */
static void take_refusal(struct pf_engine *engine, struct pf_conn *conn, struct pf_span body) {
    if (conn->http.coded) return;
    add_text(engine, conn->row, body.data, body.length);
    pf_json_feed(&conn->sse.json, body.data, body.length);
}

void pf_answer_keep_message(struct pf_engine *engine, struct pf_conn *conn) {
    struct pf_json_facts *facts = &conn->sse.json.facts;
    if (pf_json_finish(&conn->sse.json) == PF_END)
        keep_text(engine, conn->row, facts->message, facts->message_length);
}

static void note_token_line(struct pf_engine *engine, int32_t row, int32_t event) {
    struct pf_slab *slab = &engine->slab;
    int64_t at = slab->words[PF_WORD_tokens_used];
    if (at >= slab->words[PF_WORD_tokens_capacity]) {
        pf_slab_add(slab, PF_WORD_tokens_lost, 1);
        return;
    }
    slab->token_time_ns[at] = engine->read_ns;
    slab->token_kernel_wall_ns[at] = engine->read_stamp_wall;
    slab->token_row[at] = row;
    slab->token_event[at] = event;
    slab->token_same_read[at] = engine->read_tokens > 0;
    engine->read_token_line = at;
    pf_slab_store(slab, PF_WORD_tokens_used, at + 1);
}

static void note_first_token(struct pf_engine *engine, int32_t row) {
    struct pf_slab *slab = &engine->slab;
    slab->first_token_ns[row] = engine->read_ns;
    slab->first_token_kernel_wall_ns[row] = engine->read_stamp_wall;
    slab->first_token_shared_read[row] = 0; /* whatever follows in this read sets it */
    engine->first_token_row = row;
}

static void note_token(struct pf_engine *engine, struct pf_conn *conn, int visible) {
    struct pf_slab *slab = &engine->slab;
    int32_t row = conn->row;
    if (slab->content_events[row] == 0) note_first_token(engine, row);
    if (visible && slab->first_visible_token_ns[row] == PF_NULL64)
        slab->first_visible_token_ns[row] = engine->read_ns;
    slab->last_token_ns[row] = engine->read_ns;
    note_token_line(engine, row, slab->content_events[row]++);
    engine->read_tokens++;
}

static int usage_grew(struct pf_conn *conn, const struct pf_json_facts *facts) {
    if (!facts->usage || facts->completion_tokens < 0) return 0;
    int grew = conn->usage_seen && facts->choices &&
               facts->completion_tokens > conn->last_completion_tokens;
    conn->usage_seen = 1;
    conn->last_completion_tokens = facts->completion_tokens;
    return grew;
}

static enum pf_cause take_json(struct pf_engine *engine, struct pf_conn *conn) {
    struct pf_json_facts *facts = &conn->sse.json.facts;
    struct pf_slab *slab = &engine->slab;
    if (facts->error || conn->sse.is_error) {
        keep_text(engine, conn->row, facts->message, facts->message_length);
        return PF_CAUSE_ERROR_EVENT;
    }
    int grew = usage_grew(conn, facts);
    int text = facts->visible || facts->tool;
    if (text || facts->reasoning || facts->token_ids || grew)
        note_token(engine, conn, text || !facts->reasoning);
    if (facts->prompt_tokens >= 0) slab->prompt_tokens[conn->row] = facts->prompt_tokens;
    if (facts->completion_tokens >= 0)
        slab->completion_tokens[conn->row] = facts->completion_tokens;
    if (facts->finish_length > 0) {
        slab->finish_reason[conn->row] =
            intern(engine, slab->finish_names, PF_WORD_finish_names_used, facts->finish,
                   facts->finish_length);
        conn->finish_seen = 1;
    }
    return PF_CAUSE_OPEN;
}

/* The read holds bytes after its last token: the kernel's stamp is of the newest segment, so it may
 * not be that token's own. The first token's is kept as a bound and marked, another's is unknown.
 */
static void note_later_bytes(struct pf_engine *engine, const struct pf_conn *conn) {
    if (engine->first_token_row == conn->row) engine->slab.first_token_shared_read[conn->row] = 1;
    if (engine->read_token_line < 0) return;
    engine->slab.token_kernel_wall_ns[engine->read_token_line] = PF_NULL64;
    engine->read_token_line = -1;
}

static enum pf_cause take_event(struct pf_engine *engine, struct pf_conn *conn) {
    note_later_bytes(engine, conn);
    if (conn->sse.payload == PF_SSE_DONE) return PF_CAUSE_STREAM_END;
    if (conn->sse.payload == PF_SSE_JSON) return take_json(engine, conn);
    struct pf_json_facts *facts = &conn->sse.json.facts; /* an error in plain words */
    keep_text(engine, conn->row, facts->message, facts->message_length);
    return PF_CAUSE_ERROR_EVENT;
}

/* Bytes that ended no event: is there more than the LF of a CR LF? */
static int begins_an_event(const uint8_t *bytes, size_t count) {
    return count > 1 || (count == 1 && bytes[0] != '\n');
}

enum pf_cause pf_answer_body(struct pf_engine *engine, struct pf_conn *conn, struct pf_span body) {
    if (conn->http.status != 200) {
        take_refusal(engine, conn, body);
        return PF_CAUSE_OPEN;
    }
    if (engine->setup.plain[conn->kind] || conn->http.coded) return PF_CAUSE_OPEN;
    for (;;) {
        size_t used;
        int result = pf_sse_feed(&conn->sse, body.data, body.length, &used);
        body.data += used;
        body.length -= used;
        if (result == PF_AGAIN) {
            if (begins_an_event(body.data - used, used)) note_later_bytes(engine, conn);
            return PF_CAUSE_OPEN;
        }
        if (result == PF_BAD) {
            note_later_bytes(engine, conn);
            return PF_CAUSE_BAD_EVENT;
        }
        enum pf_cause cause = take_event(engine, conn);
        if (cause != PF_CAUSE_OPEN) return cause;
    }
}

enum pf_cause pf_answer_cause_at_end(struct pf_engine *engine, struct pf_conn *conn) {
    if (conn->http.status != 200) {
        pf_answer_keep_message(engine, conn);
        return PF_CAUSE_HTTP_STATUS;
    }
    if (engine->setup.plain[conn->kind]) return PF_CAUSE_PLAIN_END;
    int last = pf_sse_finish(&conn->sse);
    if (last == PF_BAD) return PF_CAUSE_BAD_EVENT;
    if (last == PF_ITEM) {
        enum pf_cause cause = take_event(engine, conn);
        if (cause != PF_CAUSE_OPEN) return cause;
    }
    return engine->setup.end_by_finish && conn->finish_seen ? PF_CAUSE_STREAM_END : PF_CAUSE_NO_END;
}
