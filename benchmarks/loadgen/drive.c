#include "drive.h"
#include "clock.h"
#include "options.h"
#include "publishing.h"
#include "setup.h"
#include "tally.h"

#include <poll.h>
#include <unistd.h>

enum { TURN_NS = 100 * 1000 * 1000 };
static const uint64_t QUIET_NS = 4000000000u;

/* A publisher that waited behind a thousand readable subscribers would throttle the server: it is looked at after
   every few of them. */
static void turn(void) {
    loop_turn(TURN_NS);
    if (options.subscribers)
        for (int i = 0; i < options.publishers; i++) connection_receive(connections.publishers[i]);
    deadline_check();
}

void drive_publish(uint64_t until_ns, uint64_t limit) {
    while (now_ns() < until_ns && publishing.sent < limit) {
        publishing_fill(limit);
        turn();
    }
}

static bool complete(int listening) {
    return publishing.acked == publishing.sent &&
           tally.delivered - tally.duplicated + tally.lost >= (uint64_t)listening * publishing.sent;
}

void drive_drain(int listening) {
    uint64_t moved_ns = now_ns(), moves = 0;
    while (!complete(listening)) {
        turn();
        uint64_t now = now_ns();
        if (moves != tally.delivered + publishing.acked) {
            moves = tally.delivered + publishing.acked;
            moved_ns = now;
        }
        if (now - moved_ns > QUIET_NS) return;
    }
}

void drive_until_told(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte;
    for (;;) {
        loop_turn(TURN_NS / 5);
        deadline_check();
        while (poll(&input, 1, 0) > 0)
            if (read(STDIN_FILENO, &byte, 1) < 1 || byte == '\n') return;
    }
}
