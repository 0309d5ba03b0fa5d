/* The application's message, the same bytes for every server:
   {"id":"<uuid>","payload":{"mark":"##mark##<sequence>@<sent at>","pad":"xxx..."}} */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Writes a message and returns its size. */
size_t message_write(char *into, uint64_t sequence, uint64_t sent_ns);

/* Finds the mark in what a subscriber received, whatever the server wrapped around it; NULL when there is none. */
const char *message_mark(const char *data, size_t bytes);
uint64_t mark_sequence(const char *mark);
uint64_t mark_sent_ns(const char *mark);
