/* The client's side of RFC 6455, as much of it as a load generator needs. */
#pragma once
#include "connection.h"

enum opcode { WS_CONTINUATION = 0, WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10 };

struct frame {
    enum opcode opcode;
    bool final;
    size_t header_bytes;
    uint64_t payload_bytes;
};

void websocket_upgrade(struct connection *c, const char *path);

/* Bytes of the server's answer to the upgrade, 0 when it is not complete yet. Anything but 101 ends the run. */
size_t websocket_upgraded(struct connection *c, const char *data, size_t bytes);

/* Reads a server's frame header; false when it is not complete yet. */
bool websocket_frame(struct frame *frame, const char *data, size_t bytes);

/* Queues one masked frame. */
void websocket_put(struct connection *c, enum opcode opcode, const char *payload, size_t bytes);

/* Answers a ping, notes a close. */
void websocket_control(struct connection *c, const struct frame *frame, const char *payload);
