/* The publishers: how many messages were sent, how many acknowledged, and how many may be in between. */
#pragma once
#include "connection.h"

struct publishing {
    uint64_t sent, acked;
    bool sample_acks;  /* the report's samples are acknowledgement times */
};

extern struct publishing publishing;

/* Sends one message from this publisher, stamped with sent_ns. The caller flushes. */
void publishing_send(struct connection *publisher, uint64_t sent_ns);

/* Lets every publisher send until its share of options.in_flight is used up, or `limit` messages were sent in all. */
void publishing_fill(uint64_t limit);

/* Called by the dialect: the server has acknowledged this publisher's oldest outstanding message. */
void publishing_acked(struct connection *publisher);
