#include "modes.h"
#include "clock.h"
#include "drive.h"
#include "options.h"
#include "publishing.h"
#include "report.h"
#include "setup.h"
#include "tally.h"

enum { SAMPLED_SUBSCRIBERS = 20 };

static uint64_t after_s(double seconds) { return now_ns() + (uint64_t)(seconds * 1e9); }

static void sample_some(int count) {
    int step = options.subscribers > count ? options.subscribers / count : 1;
    for (int i = 0; i < options.subscribers; i += step) connections.subscribers[i]->sampled = true;
}

static void report_exactness(int listening) {
    uint64_t missing = tally_missing(connections.subscribers, listening, publishing.sent);
    report_count("published", publishing.sent);
    report_count("acked", publishing.acked);
    report_count("delivered", tally.delivered);
    report_number("event_bytes", tally.delivered ? (double)tally.bytes / (double)tally.delivered : 0);
    report_count("lost", tally.lost + missing);
    report_count("duplicated", tally.duplicated);
}

static void report_cpu(struct cpu from, struct cpu to) {
    report_number("elapsed_s", (double)(to.at_ns - from.at_ns) / 1e9);
    report_number("server_cpu_percent", cpu_server_percent(from, to));
    report_number("generator_cpu_percent", cpu_generator_percent(from, to));
    report_number("others_cpu_percent", cpu_others_percent(from, to));
}

/* Every subscriber gets every message; from the first publish to the last delivery. */
void mode_fanout(void) {
    setup_open();
    drive_publish(after_s(options.warm_s), UINT64_MAX);
    drive_drain(options.subscribers);

    uint64_t delivered_before = tally.delivered;
    sample_some(SAMPLED_SUBSCRIBERS);
    tally_time_from(publishing.sent);
    struct cpu from = cpu_now();
    drive_publish(after_s(options.seconds), UINT64_MAX);
    drive_drain(options.subscribers);
    struct cpu to = cpu_now();

    report_begin("done");
    report_exactness(options.subscribers);
    report_cpu(from, to);
    report_number("rate", (double)(tally.delivered - delivered_before) / ((double)(to.at_ns - from.at_ns) / 1e9));
    tally_report_samples();
    report_end();
}

/* Acknowledged publishes, nobody subscribed. */
void mode_publish(void) {
    setup_open();
    for (int i = 0; i < options.publishers; i++) connections.publishers[i]->sampled = true;
    drive_publish(after_s(options.warm_s), UINT64_MAX);
    drive_drain(0);

    uint64_t acked_before = publishing.acked;
    publishing.sample_acks = true;
    struct cpu from = cpu_now();
    drive_publish(after_s(options.seconds), UINT64_MAX);
    drive_drain(0);
    struct cpu to = cpu_now();

    report_begin("done");
    report_exactness(0);
    report_cpu(from, to);
    report_number("rate", (double)(publishing.acked - acked_before) / ((double)(to.at_ns - from.at_ns) / 1e9));
    tally_report_samples();
    report_end();
}

/* Open loop: message i is due at start + i / rate and is stamped with that time, whether or not the server keeps up. */
static void publish_at_rate(double seconds) {
    uint64_t start_ns = now_ns(), count = (uint64_t)(options.rate * seconds);
    for (uint64_t i = 0; i < count;) {
        uint64_t due_ns = start_ns + (uint64_t)((double)i * 1e9 / options.rate), now = now_ns();
        if (now >= due_ns) {
            publishing_send(connections.publishers[0], due_ns);
            connection_flush(connections.publishers[0]);
            i++;
        } else loop_turn(due_ns - now);
        deadline_check();
    }
}

/* From the time a publish was due to its receipt in each subscriber. */
void mode_latency(void) {
    setup_open();
    sample_some(options.subscribers);
    publish_at_rate(options.warm_s);
    drive_drain(options.subscribers);

    tally_time_from(publishing.sent);
    struct cpu from = cpu_now();
    publish_at_rate(options.seconds);
    drive_drain(options.subscribers);
    struct cpu to = cpu_now();

    report_begin("done");
    report_exactness(options.subscribers);
    report_cpu(from, to);
    tally_report_samples();
    report_end();
}

static void report_phase(const char *phase) {
    report_begin(phase);
    report_end();
}

/* Subscribers of a topic on which nothing is published, held until told. */
void mode_idle(void) {
    setup_open();
    report_phase("ready");
    drive_until_told();
    report_phase("done");
}

/* What the server kept for a subscriber that did not read: read it now, until nothing more comes. */
static void listen_to_stalled(struct connection *stalled) {
    static const uint64_t quiet_ns = 1500000000u;
    uint64_t heard_ns = now_ns(), heard = stalled->events;
    connection_listen_again(stalled);
    while (stalled->stage != CLOSED && now_ns() - heard_ns < quiet_ns) {
        loop_turn(quiet_ns / 10);
        deadline_check();
        if (heard != stalled->events + stalled->notices) {
            heard = stalled->events + stalled->notices;
            heard_ns = now_ns();
        }
    }
}

/* The last subscriber never reads, if options.deaf; the others must still get everything. */
void mode_stalled(void) {
    int listening = options.subscribers - options.deaf;
    setup_open();
    struct connection *stalled = connections.subscribers[options.subscribers - 1];
    if (options.deaf) connection_deafen(stalled);
    report_phase("ready");
    drive_until_told();

    struct cpu from = cpu_now();
    drive_publish(UINT64_MAX, options.count);
    drive_drain(listening);
    struct cpu to = cpu_now();
    report_begin("published");
    report_exactness(listening);
    report_cpu(from, to);
    report_end();
    drive_until_told();

    if (options.deaf) listen_to_stalled(stalled);
    report_begin("done");
    report_count("stalled_events", stalled->events);
    report_count("stalled_skipped", stalled->lost);
    report_count("stalled_notices", stalled->notices);
    report_count("stalled_noticed_lost", stalled->noticed_lost);
    report_count("stalled_closed", stalled->stage == CLOSED);
    report_end();
}
