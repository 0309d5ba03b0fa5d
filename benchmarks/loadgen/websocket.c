#include "websocket.h"
#include "options.h"
#include "report.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

void websocket_upgrade(struct connection *c, const char *path) {
    char request[512];
    int bytes = snprintf(request, sizeof request,
                         "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
                         path, options.address, options.port);
    connection_put(c, request, (size_t)bytes);
}

size_t websocket_upgraded(struct connection *c, const char *data, size_t bytes) {
    const char *end = memmem(data, bytes, "\r\n\r\n", 4);
    if (!end) return 0;
    if (bytes < 12 || memcmp(data + 8, " 101", 4))
        fail("the server refused the WebSocket: %.*s", (int)(bytes < 80 ? bytes : 80), data);
    c->upgraded = true;
    return (size_t)(end - data) + 4;
}

bool websocket_frame(struct frame *frame, const char *data, size_t bytes) {
    if (bytes < 2) return false;
    const unsigned char *head = (const unsigned char *)data;
    frame->final = head[0] & 0x80;
    frame->opcode = head[0] & 0x0f;
    frame->header_bytes = 2;
    frame->payload_bytes = head[1] & 0x7f;
    if (head[1] & 0x80) fail("the server sent a masked frame");
    if (frame->payload_bytes == 126) {
        frame->header_bytes = 4;
        if (bytes < 4) return false;
        frame->payload_bytes = (uint64_t)head[2] << 8 | head[3];
    } else if (frame->payload_bytes == 127) {
        uint64_t big;
        frame->header_bytes = 10;
        if (bytes < 10) return false;
        memcpy(&big, data + 2, 8);
        frame->payload_bytes = be64toh(big);
    }
    return true;
}

/* A fresh mask for every frame, as RFC 6455 asks, so that the server really has to unmask. */
static uint32_t next_mask(void) {
    static uint32_t state = 0x9e3779b9;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

void websocket_put(struct connection *c, enum opcode opcode, const char *payload, size_t bytes) {
    static char masked[MESSAGE_BYTES_MAX + 4096];
    unsigned char head[8] = {(unsigned char)(0x80 | opcode), 0x80};
    size_t head_bytes = 4;
    if (bytes > sizeof masked) fail("a frame of %zu bytes is too large to send", bytes);
    if (bytes < 126) {
        head[1] |= (unsigned char)bytes;
        head_bytes = 2;
    } else if (bytes < 65536) {
        head[1] |= 126;
        head[2] = (unsigned char)(bytes >> 8);
        head[3] = (unsigned char)bytes;
    } else fail("a frame of %zu bytes is too large to send", bytes);
    uint32_t mask = next_mask();
    memcpy(head + head_bytes, &mask, 4);
    for (size_t i = 0; i < bytes; i++) masked[i] = payload[i] ^ (char)head[head_bytes + i % 4];
    connection_put(c, head, head_bytes + 4);
    connection_put(c, masked, bytes);
}

void websocket_control(struct connection *c, const struct frame *frame, const char *payload) {
    if (frame->opcode == WS_PING) websocket_put(c, WS_PONG, payload, frame->payload_bytes);
    if (frame->opcode == WS_CLOSE && !c->may_close)
        fail("the server closed the WebSocket of %s %d: %.*s", c->role == PUBLISHER ? "publisher" : "subscriber",
             c->number, frame->payload_bytes > 2 ? (int)frame->payload_bytes - 2 : 0, payload + 2);
}
