/* The load generator: one thread, one epoll, many connections to one server on loopback. See ../README.md. */
#include "dialect.h"
#include "modes.h"
#include "options.h"
#include "report.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

static const struct {
    const char *name;
    void (*run)(void);
} modes[] = {{"fanout", mode_fanout}, {"publish", mode_publish}, {"latency", mode_latency},
             {"idle", mode_idle}, {"stalled", mode_stalled}};

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    options_read(argc, argv);
    dialect_choose(options.dialect);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(modes[i].name, options.mode)) continue;
        modes[i].run();
        return 0;
    }
    fail("no such mode: %s", options.mode);
}
