/* A dialect turns a server's bytes into three events, and a publish into bytes. */
#pragma once
#include "connection.h"

struct dialect {
    const char *name;

    /* TCP is up: queue whatever the connection has to say to become ready. */
    void (*open)(struct connection *c);

    /* Parses received bytes in place, and calls tally_event, publishing_acked and setup_ready; returns how many bytes
       it is done with. The rest comes again, in front of what arrives next. */
    size_t (*consume)(struct connection *c, char *data, size_t bytes);

    /* Queues one publish of the message. */
    void (*publish)(struct connection *c, const char *message, size_t bytes);
};

extern const struct dialect *dialect;

extern const struct dialect dialect_json;       /* Himalia, the seed, the null broker: JSON in WebSocket text frames */
extern const struct dialect dialect_redis;      /* SUBSCRIBE and PUBLISH */
extern const struct dialect dialect_stream;     /* Redis XADD */
extern const struct dialect dialect_nats;       /* NATS core over its WebSocket port */
extern const struct dialect dialect_jetstream;  /* JetStream publishes over TCP */

void dialect_choose(const char *name);
