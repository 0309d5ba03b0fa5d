#include "tally.h"
#include "message.h"
#include "report.h"

#include <stdlib.h>

enum { SAMPLES_MAX = 8 * 1024 * 1024 };

struct tally tally;

static uint64_t timed_from = UINT64_MAX;
static uint64_t *samples;
static size_t sample_count, sample_room;

void tally_time_from(uint64_t sequence) { timed_from = sequence; }

void tally_forget_samples(void) { sample_count = 0; }

void tally_sample(uint64_t duration_ns) {
    if (sample_count == SAMPLES_MAX) return;
    if (sample_count == sample_room) {
        sample_room = sample_room ? sample_room * 2 : 65536;
        samples = realloc(samples, sample_room * sizeof *samples);
        if (!samples) fail("out of memory");
    }
    samples[sample_count++] = duration_ns;
}

void tally_event(struct connection *c, const char *data, size_t bytes) {
    const char *mark = message_mark(data, bytes);
    if (!mark) fail("an event without a mark: %.*s", (int)(bytes < 200 ? bytes : 200), data);
    uint64_t sequence = mark_sequence(mark);
    c->events++;
    tally.delivered++;
    tally.bytes += bytes;
    if (sequence == c->next) c->next++;
    else if (sequence > c->next) {
        c->lost += sequence - c->next;
        tally.lost += sequence - c->next;
        c->next = sequence + 1;
    } else {
        c->duplicated++;
        tally.duplicated++;
    }
    if (!c->sampled || sequence < timed_from) return;
    uint64_t sent_ns = mark_sent_ns(mark);
    tally_sample(received_ns > sent_ns ? received_ns - sent_ns : 0);
}

static int by_size(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static double percentile_ms(double share) {
    size_t at = (size_t)(share * (double)(sample_count - 1));
    return (double)samples[at] / 1e6;
}

void tally_report_samples(void) {
    report_count("samples", sample_count);
    if (!sample_count) return;
    qsort(samples, sample_count, sizeof *samples, by_size);
    report_number("p50_ms", percentile_ms(0.5));
    report_number("p99_ms", percentile_ms(0.99));
    report_number("max_ms", percentile_ms(1));
}

uint64_t tally_missing(struct connection *const *subscribers, int count, uint64_t published) {
    uint64_t missing = 0;
    for (int i = 0; i < count; i++)
        if (subscribers[i]->next < published) missing += published - subscribers[i]->next;
    return missing;
}
