#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void report_begin(const char *phase) { printf("{\"phase\":\"%s\"", phase); }

void report_number(const char *key, double value) { printf(",\"%s\":%.9g", key, value); }

void report_count(const char *key, uint64_t value) { printf(",\"%s\":%llu", key, (unsigned long long)value); }

void report_end(void) {
    printf("}\n");
    fflush(stdout);
}

static void print_escaped(const char *text) {
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\') printf("\\%c", byte);
        else if (byte < 0x20 || byte >= 0x7f) printf("\\u%04x", byte);
        else putchar(byte);
    }
}

void fail(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("{\"phase\":\"failed\",\"error\":\"");
    print_escaped(text);
    printf("\"}\n");
    fflush(stdout);
    exit(1);
}
