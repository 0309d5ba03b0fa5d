/* What the command line asked for: read once, never changed. */
#pragma once
#include <stdint.h>
#include <sys/types.h>

enum { SUBSCRIBERS_MAX = 16000, PUBLISHERS_MAX = 256, IN_FLIGHT_MAX = 4096, MESSAGE_BYTES_MAX = 64 * 1024 };

struct options {
    const char *mode;
    const char *dialect;
    const char *address;
    int port;
    const char *topic;
    const char *policy;     /* sent with a JSON subscribe; empty: not sent */
    int subscribers;
    int deaf;               /* stalled: how many of the subscribers never read, 0 or 1 */
    int publishers;
    int in_flight;          /* publishes sent and not acknowledged, over all publishers together */
    int message_bytes;      /* of the application's message: {"id":...,"payload":{...}} */
    double warm_s;
    double seconds;
    double rate;            /* latency: publishes per second */
    uint64_t count;         /* stalled: messages to publish */
    double deadline_s;      /* of the whole run */
    pid_t server_pid;       /* 0: the server's CPU is not measured */
};

extern struct options options;

void options_read(int argc, char **argv);
