/* One TCP connection to the server under test, and the epoll loop that serves all of them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum role { SUBSCRIBER, PUBLISHER };
enum stage { CONNECTING, OPENING, READY, CLOSED };

struct connection {
    int fd;
    int number;              /* of its role: 0, 1, 2, ... */
    enum role role;
    enum stage stage;
    bool deaf;               /* taken out of the loop: never read (the stalled subscriber) */
    bool may_close;          /* the server closing it is a result, not a failure */
    bool sampled;            /* its deliveries are timed */

    char *carry;             /* received, but not yet a whole unit of the protocol */
    size_t carry_bytes, carry_room;
    char *out;               /* to be sent */
    size_t out_bytes, out_room;
    bool waits_for_room;

    bool upgraded;           /* WebSocket: the handshake is done */
    bool introduced;         /* NATS: CONNECT was sent */
    uint64_t frame_left;     /* WebSocket as a byte stream: payload still to come in the current frame */
    size_t plain_bytes;      /* WebSocket as a byte stream: how much of `carry` has lost its frame headers */

    uint64_t next;           /* the sequence number that must come next */
    uint64_t events, lost, duplicated;
    uint64_t notices, noticed_lost;

    int in_flight;           /* publisher: sent and not acknowledged */
    uint64_t *sent_at;       /* publisher: when each of those was sent, a ring of options.in_flight */
    uint64_t sent, acked;
};

/* When the bytes now being parsed arrived. Kept only for sampled connections. */
extern uint64_t received_ns;

void loop_open(void);
struct connection *connection_new(enum role role, int number);
void connection_connect(struct connection *c);

/* Queues bytes; connection_flush sends them, in one call where the socket takes them. */
void connection_put(struct connection *c, const void *data, size_t bytes);
void connection_flush(struct connection *c);

void connection_receive(struct connection *c);
void connection_deafen(struct connection *c);
void connection_listen_again(struct connection *c);
void connection_close(struct connection *c);

/* One epoll_wait and what came of it; waits at most wait_ns. */
void loop_turn(uint64_t wait_ns);
