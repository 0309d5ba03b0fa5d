/* The run's result: one JSON object on one line of standard output. */
#pragma once
#include <stdint.h>

void report_begin(const char *phase);
void report_number(const char *key, double value);
void report_count(const char *key, uint64_t value);
void report_end(void);

/* Reports {"phase":"failed","error":...} and ends the process with status 1. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
