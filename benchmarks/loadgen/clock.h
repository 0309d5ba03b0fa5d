/* Time, and the CPU time that this process and the server have used. */
#pragma once
#include <stdint.h>

uint64_t now_ns(void);

struct cpu {
    uint64_t at_ns;
    double generator_s;
    double server_s;
    double machine_s;  /* of everything on the machine, less interrupts, which are the loopback's own work */
};

struct cpu cpu_now(void);

/* Share of one core between two readings, in percent; a server with several busy threads may exceed 100. */
double cpu_generator_percent(struct cpu from, struct cpu to);
double cpu_server_percent(struct cpu from, struct cpu to);

/* What neither of the two used: other work on the machine, which disturbs the measurement. */
double cpu_others_percent(struct cpu from, struct cpu to);
