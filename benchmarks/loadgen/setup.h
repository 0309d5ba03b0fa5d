/* Opens every connection of a run, a bounded number at a time, and waits until the server has confirmed each. */
#pragma once
#include "connection.h"
#include "options.h"

struct connections {
    struct connection *publishers[PUBLISHERS_MAX];
    struct connection *subscribers[SUBSCRIBERS_MAX];
};

extern struct connections connections;

void setup_open(void);

/* Called by the dialect when the server has confirmed the connection. */
void setup_ready(struct connection *c);

/* Ends the run with a failure when its deadline has passed. */
void deadline_check(void);
