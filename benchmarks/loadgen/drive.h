/* Turning the loop until something holds. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Publishes with options.in_flight outstanding until the time, or `limit` messages in all. */
void drive_publish(uint64_t until_ns, uint64_t limit);

/* Waits until every publish is acknowledged and every listening subscriber has everything that was published. Gives up
   when nothing moves for a while; what is missing then is lost. */
void drive_drain(int listening);

/* Keeps the connections alive until a line, or the end, comes on standard input. */
void drive_until_told(void);
