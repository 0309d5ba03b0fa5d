#include "clock.h"
#include "options.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* All threads of the server, in user and in kernel, from /proc/PID/stat (10 ms steps). */
static double server_cpu_s(void) {
    char path[64], line[1024];
    if (!options.server_pid) return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)options.server_pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = 0;
    unsigned long user = 0, kernel = 0;
    const char *after_name = strrchr(line, ')');
    if (after_name) sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double machine_cpu_s(void) {
    unsigned long user = 0, nice = 0, kernel = 0;
    FILE *file = fopen("/proc/stat", "r");
    if (!file) return 0;
    if (fscanf(file, "cpu %lu %lu %lu", &user, &nice, &kernel) != 3) user = nice = kernel = 0;
    fclose(file);
    return (double)(user + nice + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec / 1e6; }

struct cpu cpu_now(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (struct cpu){now_ns(), seconds(usage.ru_utime) + seconds(usage.ru_stime), server_cpu_s(),
                        machine_cpu_s()};
}

static double percent(double used_s, struct cpu from, struct cpu to) {
    double elapsed_s = (double)(to.at_ns - from.at_ns) / 1e9;
    return elapsed_s > 0 ? 100 * used_s / elapsed_s : 0;
}

double cpu_generator_percent(struct cpu from, struct cpu to) {
    return percent(to.generator_s - from.generator_s, from, to);
}

double cpu_server_percent(struct cpu from, struct cpu to) { return percent(to.server_s - from.server_s, from, to); }

double cpu_others_percent(struct cpu from, struct cpu to) {
    double ours = to.server_s - from.server_s + to.generator_s - from.generator_s;
    double others = percent(to.machine_s - from.machine_s - ours, from, to);
    return others > 0 ? others : 0;
}
