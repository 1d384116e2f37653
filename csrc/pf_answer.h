/* What an answer says: head, body and events -> column values and causes.
 *
 * Never: touches a socket or the connection's life.
 */
#ifndef PF_ANSWER_H
#define PF_ANSWER_H

#include "pf_engine.h"

/* Notes status, header time and replica once the head is whole. */
void pf_answer_head(struct pf_engine *engine, struct pf_conn *conn);

/* Takes a body span. PF_CAUSE_OPEN: go on; PF_CAUSE_STREAM_END: the stream's own end was in it;
 * any other: the request has failed. */
enum pf_cause pf_answer_body(struct pf_engine *engine, struct pf_conn *conn, struct pf_span body);

/* The body is whole (by its framing, or by close) and the row still open: how it ended. */
enum pf_cause pf_answer_cause_at_end(struct pf_engine *engine, struct pf_conn *conn);

/* Blots out what of the row's kept text is a secret that was sent: servers echo keys in errors. */
void pf_answer_redact(struct pf_engine *engine, int64_t row);

/* Stores the error text seen so far in an answer that is not 200. */
void pf_answer_keep_message(struct pf_engine *engine, struct pf_conn *conn);

#endif
