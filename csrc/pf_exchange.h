/* One request's life on a connection: dial, send, read, parse, column writes.
 *
 * Does: everything between "this row is due" and "this row has ended".
 * Never: waits, or looks at another row.
 */
#ifndef PF_EXCHANGE_H
#define PF_EXCHANGE_H

#include "pf_engine.h"

/* Sends a due row, over an idle connection or a new one. */
void pf_exchange_start(struct pf_engine *engine, int64_t row);

/* Serves epoll's `events` on a connection. */
void pf_exchange_ready(struct pf_engine *engine, struct pf_conn *conn, uint32_t events);

/* What one read gave (enum pf_sock_result, errno, bytes, the kernel's stamp): parsed, written,
 * judged. Returns whether the connection is still there to be read. */
int pf_exchange_take(struct pf_engine *engine, struct pf_conn *conn, int result, int error,
                     const uint8_t *data, size_t length, pf_ns stamp_wall);

/* A connection `fd` whose request is sent already takes a row; NULL when the table is full. Its
 * reads come from pf_exchange_take alone: for what has the bytes without a socket. */
struct pf_conn *pf_exchange_adopt(struct pf_engine *engine, int64_t row, int fd);

/* Ends the connection's row (if it is still open) with a cause of the engine's own, and closes. */
void pf_exchange_abandon(struct pf_engine *engine, struct pf_conn *conn, enum pf_cause cause);

/* Closes a connection that stands idle. */
void pf_exchange_retire(struct pf_engine *engine, struct pf_conn *conn);

#endif
