#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options options = {
    .address = "127.0.0.1",
    .topic = "bench",
    .policy = "",
    .publishers = 1,
    .in_flight = 64,
    .message_bytes = 190,
    .warm_s = 0.5,
    .seconds = 3,
    .rate = 500,
    .deadline_s = 60,
};

static void usage(const char *why) {
    fprintf(stderr, "loadgen: %s\n"
            "usage: loadgen fanout|publish|latency|idle|stalled --dialect json|redis|stream|nats|jetstream --port N\n"
            "  [--address A] [--topic T] [--policy P] [--subscribers N] [--deaf 0|1] [--publishers N]\n"
            "  [--in-flight N] [--message-bytes N] [--warm S] [--seconds S] [--rate N] [--count N] [--deadline S] [--server-pid N]\n", why);
    exit(2);
}

static void read_one(const char *name, const char *value) {
    if (!strcmp(name, "--dialect")) options.dialect = value;
    else if (!strcmp(name, "--address")) options.address = value;
    else if (!strcmp(name, "--port")) options.port = atoi(value);
    else if (!strcmp(name, "--topic")) options.topic = value;
    else if (!strcmp(name, "--policy")) options.policy = value;
    else if (!strcmp(name, "--subscribers")) options.subscribers = atoi(value);
    else if (!strcmp(name, "--deaf")) options.deaf = atoi(value);
    else if (!strcmp(name, "--publishers")) options.publishers = atoi(value);
    else if (!strcmp(name, "--in-flight")) options.in_flight = atoi(value);
    else if (!strcmp(name, "--message-bytes")) options.message_bytes = atoi(value);
    else if (!strcmp(name, "--warm")) options.warm_s = atof(value);
    else if (!strcmp(name, "--seconds")) options.seconds = atof(value);
    else if (!strcmp(name, "--rate")) options.rate = atof(value);
    else if (!strcmp(name, "--count")) options.count = strtoull(value, NULL, 10);
    else if (!strcmp(name, "--deadline")) options.deadline_s = atof(value);
    else if (!strcmp(name, "--server-pid")) options.server_pid = atoi(value);
    else usage(name);
}

void options_read(int argc, char **argv) {
    if (argc < 2) usage("which mode?");
    options.mode = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) read_one(argv[i], argv[i + 1]);
    if (argc % 2) usage("every option takes one value");
    if (!options.dialect || !options.port) usage("--dialect and --port are needed");
    if (options.subscribers < 0 || options.subscribers > SUBSCRIBERS_MAX) usage("--subscribers out of range");
    if (options.deaf < 0 || options.deaf > 1 || options.deaf > options.subscribers) usage("--deaf out of range");
    if (options.publishers < 0 || options.publishers > PUBLISHERS_MAX) usage("--publishers out of range");
    if (options.in_flight < 1 || options.in_flight > IN_FLIGHT_MAX) usage("--in-flight out of range");
    if (options.in_flight < options.publishers) usage("--in-flight is less than one per publisher");
    if (options.message_bytes > MESSAGE_BYTES_MAX) usage("--message-bytes out of range");
}
