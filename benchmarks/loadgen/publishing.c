#include "publishing.h"
#include "clock.h"
#include "dialect.h"
#include "message.h"
#include "options.h"
#include "report.h"
#include "setup.h"
#include "tally.h"

struct publishing publishing;

void publishing_send(struct connection *publisher, uint64_t sent_ns) {
    static char message[MESSAGE_BYTES_MAX + 256];
    if (publisher->in_flight == options.in_flight)
        fail("the server fell behind: %d publishes without an acknowledgement", options.in_flight);
    size_t bytes = message_write(message, publishing.sent, sent_ns);
    dialect->publish(publisher, message, bytes);
    publisher->sent_at[publisher->sent % (uint64_t)options.in_flight] = sent_ns;
    publisher->sent++;
    publisher->in_flight++;
    publishing.sent++;
}

void publishing_fill(uint64_t limit) {
    int share = options.in_flight / options.publishers;
    for (int i = 0; i < options.publishers; i++) {
        struct connection *publisher = connections.publishers[i];
        while (publisher->in_flight < share && publishing.sent < limit) publishing_send(publisher, now_ns());
        connection_flush(publisher);
    }
}

void publishing_acked(struct connection *publisher) {
    if (publisher->acked == publisher->sent) fail("an acknowledgement too many");
    if (publishing.sample_acks)
        tally_sample(received_ns - publisher->sent_at[publisher->acked % (uint64_t)options.in_flight]);
    publisher->acked++;
    publisher->in_flight--;
    publishing.acked++;
}
