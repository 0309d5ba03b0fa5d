#include "message.h"
#include "options.h"

#include <stdio.h>
#include <string.h>

#define TAG "##mark##"
#define HEAD_ID "{\"id\":\"00000000-0000-4000-8000-000000000000\",\"payload\":{\"mark\":\""
#define HEAD HEAD_ID TAG "00000000@0000000000000000000\",\"pad\":\""
#define TAIL "\"}}"

enum {
    TAG_BYTES = sizeof TAG - 1,
    SEQUENCE_DIGITS = 8,
    TIME_AT = TAG_BYTES + SEQUENCE_DIGITS + 1,
    TIME_DIGITS = 19,
    MARK_BYTES = TIME_AT + TIME_DIGITS,
    MARK_AT = sizeof HEAD_ID - 1,
    HEAD_BYTES = sizeof HEAD - 1,
    TAIL_BYTES = sizeof TAIL - 1,
    RUN_AT = 7,          /* first group of the id: the run */
    NUMBER_AT = 31,      /* last group of the id: the sequence number */
    NUMBER_DIGITS = 12,
};

static void put_digits(char *into, int digits, uint64_t value) {
    for (int i = digits - 1; i >= 0; i--, value /= 10) into[i] = (char)('0' + value % 10);
}

/* Ids must differ between runs, or a server that knows a message's id would take it for a retry. */
static uint32_t run_number(void) {
    static uint32_t number;
    while (!number) {
        FILE *random = fopen("/dev/urandom", "r");
        if (!random || fread(&number, sizeof number, 1, random) != 1) number = 1;
        if (random) fclose(random);
    }
    return number;
}

size_t message_write(char *into, uint64_t sequence, uint64_t sent_ns) {
    size_t wanted = (size_t)options.message_bytes, least = HEAD_BYTES + TAIL_BYTES;
    size_t pad = wanted > least ? wanted - least : 0;
    char run[9];
    memcpy(into, HEAD, HEAD_BYTES);
    snprintf(run, sizeof run, "%08x", run_number());
    memcpy(into + RUN_AT, run, 8);
    put_digits(into + NUMBER_AT, NUMBER_DIGITS, sequence);
    put_digits(into + MARK_AT + TAG_BYTES, SEQUENCE_DIGITS, sequence);
    put_digits(into + MARK_AT + TIME_AT, TIME_DIGITS, sent_ns);
    memset(into + HEAD_BYTES, 'x', pad);
    memcpy(into + HEAD_BYTES + pad, TAIL, TAIL_BYTES);
    return HEAD_BYTES + pad + TAIL_BYTES;
}

const char *message_mark(const char *data, size_t bytes) {
    /* The pad has one length in a run, so the mark's distance from the end is nearly always the last one's. */
    static size_t from_end;
    if (from_end && from_end <= bytes) {
        const char *here = data + bytes - from_end;
        if (!memcmp(here, TAG, TAG_BYTES)) return here;
    }
    const char *found = memmem(data, bytes, TAG, TAG_BYTES);
    if (!found || found + MARK_BYTES > data + bytes) return NULL;
    from_end = (size_t)(data + bytes - found);
    return found;
}

/* Eight ASCII digits at once: pairs, then fours, then all (little-endian). */
uint64_t mark_sequence(const char *mark) {
    uint64_t v;
    memcpy(&v, mark + TAG_BYTES, SEQUENCE_DIGITS);
    v -= 0x3030303030303030u;
    v = v * 10 + (v >> 8);
    return ((v & 0x000000ff000000ffu) * 0x000f424000000064u + ((v >> 16) & 0x000000ff000000ffu) * 0x0000271000000001u) >> 32;
}

uint64_t mark_sent_ns(const char *mark) {
    uint64_t value = 0;
    for (int i = 0; i < TIME_DIGITS; i++) value = value * 10 + (uint64_t)(mark[TIME_AT + i] - '0');
    return value;
}
