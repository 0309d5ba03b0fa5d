#include "dialect.h"
#include "report.h"

#include <string.h>

const struct dialect *dialect;

static const struct dialect *const all[] = {&dialect_json, &dialect_redis, &dialect_stream, &dialect_nats,
                                            &dialect_jetstream};

void dialect_choose(const char *name) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i]->name, name)) dialect = all[i];
    if (!dialect) fail("no such dialect: %s", name);
}
