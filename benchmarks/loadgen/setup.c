#include "setup.h"
#include "clock.h"
#include "report.h"

enum { OPENING_MAX = 64 };

struct connections connections;

static int started, ready;

void deadline_check(void) {
    static uint64_t deadline_ns;
    uint64_t now = now_ns();
    if (!deadline_ns) deadline_ns = now + (uint64_t)(options.deadline_s * 1e9);
    if (now > deadline_ns) fail("not finished after %.0f s", options.deadline_s);
}

void setup_ready(struct connection *c) {
    c->stage = READY;
    ready++;
}

static void start_next(void) {
    struct connection *c;
    if (started < options.publishers) {
        c = connection_new(PUBLISHER, started);
        connections.publishers[c->number] = c;
    } else {
        c = connection_new(SUBSCRIBER, started - options.publishers);
        connections.subscribers[c->number] = c;
        c->may_close = c->number >= options.subscribers - options.deaf;
    }
    started++;
    connection_connect(c);
}

void setup_open(void) {
    int all = options.publishers + options.subscribers;
    loop_open();
    while (ready < all) {
        while (started < all && started - ready < OPENING_MAX) start_next();
        loop_turn(100000000);
        deadline_check();
    }
}
