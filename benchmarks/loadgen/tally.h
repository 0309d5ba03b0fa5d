/* Exactness: every subscriber must get every sequence number once, in order. And the times of the sampled ones. */
#pragma once
#include "connection.h"

struct tally {
    uint64_t delivered, lost, duplicated;
    uint64_t bytes;  /* of the events as the application gets them */
};

extern struct tally tally;

/* One event of the server, complete, with or without its envelope. */
void tally_event(struct connection *c, const char *data, size_t bytes);

/* Deliveries of messages from this sequence number on are timed. */
void tally_time_from(uint64_t sequence);

/* A duration that belongs to the report: of a delivery, or of an acknowledged publish. */
void tally_sample(uint64_t duration_ns);
void tally_forget_samples(void);

/* Adds p50_ms, p99_ms and max_ms to the report. */
void tally_report_samples(void);

/* What each subscriber should have and has not, up to `published`. */
uint64_t tally_missing(struct connection *const *subscribers, int count, uint64_t published);
