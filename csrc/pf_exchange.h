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

/* Ends the connection's row (if it is still open) with a cause of the engine's own, and closes. */
void pf_exchange_abandon(struct pf_engine *engine, struct pf_conn *conn, enum pf_cause cause);

/* Closes a connection that stands idle. */
void pf_exchange_retire(struct pf_engine *engine, struct pf_conn *conn);

#endif
