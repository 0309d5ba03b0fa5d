/* Redis, RESP2: SUBSCRIBE and PUBLISH for fan-out, XADD for a log. Commands are pipelined on one connection. */
#include "dialect.h"
#include "options.h"
#include "publishing.h"
#include "report.h"
#include "setup.h"
#include "tally.h"

#include <stdio.h>
#include <string.h>

static void put_text(struct connection *c, const char *text) { connection_put(c, text, strlen(text)); }

static void put_bulk(struct connection *c, const char *data, size_t bytes) {
    char head[32];
    connection_put(c, head, (size_t)snprintf(head, sizeof head, "$%zu\r\n", bytes));
    connection_put(c, data, bytes);
    connection_put(c, "\r\n", 2);
}

static void open_redis(struct connection *c) {
    if (c->role == SUBSCRIBER) {
        put_text(c, "*2\r\n$9\r\nSUBSCRIBE\r\n");
        put_bulk(c, options.topic, strlen(options.topic));
    } else put_text(c, "*1\r\n$4\r\nPING\r\n");
}

static void publish(struct connection *c, const char *message, size_t bytes) {
    put_text(c, "*3\r\n$7\r\nPUBLISH\r\n");
    put_bulk(c, options.topic, strlen(options.topic));
    put_bulk(c, message, bytes);
}

static void add_to_stream(struct connection *c, const char *message, size_t bytes) {
    put_text(c, "*5\r\n$4\r\nXADD\r\n");
    put_bulk(c, options.topic, strlen(options.topic));
    put_text(c, "$1\r\n*\r\n$1\r\nm\r\n");
    put_bulk(c, message, bytes);
}

struct bulk {
    const char *data;
    size_t bytes;
};

/* Reads "<kind><number>\r\n"; returns what follows, or NULL when it is not complete. */
static const char *number_line(const char *at, const char *end, char kind, long *number) {
    if (at >= end) return NULL;
    if (*at != kind) fail("Redis sent what was not expected: %.*s", (int)(end - at < 100 ? end - at : 100), at);
    long value = 0;
    for (at++; at < end && *at >= '0' && *at <= '9'; at++) value = value * 10 + (*at - '0');
    *number = value;
    return at + 2 <= end ? at + 2 : NULL;
}

static const char *bulk(const char *at, const char *end, struct bulk *into) {
    long bytes;
    at = number_line(at, end, '$', &bytes);
    if (!at || end - at < bytes + 2) return NULL;
    *into = (struct bulk){at, (size_t)bytes};
    return at + bytes + 2;
}

/* A push to a subscriber: ["message", topic, body], or ["subscribe", topic, :count]. */
static const char *push(struct connection *c, const char *at, const char *end) {
    struct bulk kind, topic, body;
    long number;
    at = number_line(at, end, '*', &number);
    if (at) at = bulk(at, end, &kind);
    if (at) at = bulk(at, end, &topic);
    if (!at) return NULL;
    if (kind.bytes == 7) {
        at = bulk(at, end, &body);
        if (at) tally_event(c, body.data, body.bytes);
        return at;
    }
    at = number_line(at, end, ':', &number);
    if (at) setup_ready(c);
    return at;
}

/* An answer to a publisher: +PONG, :receivers, or an entry's id. */
static const char *answer(struct connection *c, const char *at, const char *end) {
    struct bulk id;
    long receivers;
    if (*at == '+') {
        const char *line_end = memmem(at, (size_t)(end - at), "\r\n", 2);
        if (!line_end) return NULL;
        setup_ready(c);
        return line_end + 2;
    }
    at = *at == '$' ? bulk(at, end, &id) : number_line(at, end, ':', &receivers);
    if (at) publishing_acked(c);
    return at;
}

static size_t consume(struct connection *c, char *data, size_t bytes) {
    const char *at = data, *end = data + bytes;
    while (at < end) {
        const char *next = c->role == SUBSCRIBER ? push(c, at, end) : answer(c, at, end);
        if (!next) break;
        at = next;
    }
    return (size_t)(at - data);
}

const struct dialect dialect_redis = {"redis", open_redis, consume, publish};
const struct dialect dialect_stream = {"stream", open_redis, consume, add_to_stream};
