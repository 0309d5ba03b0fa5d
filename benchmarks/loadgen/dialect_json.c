/* JSON in WebSocket text frames: what Himalia, the seed and the null broker speak. */
#include "dialect.h"
#include "options.h"
#include "publishing.h"
#include "report.h"
#include "setup.h"
#include "tally.h"
#include "websocket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENT "{\"type\":\"event\""
enum { TYPE_WITHIN_BYTES = 160 };

static void open_websocket(struct connection *c) { websocket_upgrade(c, "/ws"); }

static void subscribe(struct connection *c) {
    char text[512], policy[64] = "";
    if (*options.policy) snprintf(policy, sizeof policy, ",\"policy\":\"%s\"", options.policy);
    int bytes = snprintf(text, sizeof text,
                         "{\"type\":\"subscribe\",\"topic\":\"%s\",\"client_id\":\"s%d\"%s,\"request_id\":\"s%d\"}",
                         options.topic, c->number, c->may_close ? "" : policy, c->number);
    websocket_put(c, WS_TEXT, text, (size_t)bytes);
}

static void publish(struct connection *c, const char *message, size_t message_bytes) {
    static char text[MESSAGE_BYTES_MAX + 512];
    int bytes = snprintf(text, sizeof text, "{\"type\":\"publish\",\"topic\":\"%s\",\"message\":%.*s,\"request_id\":\"p%llu\"}",
                         options.topic, (int)message_bytes, message, (unsigned long long)publishing.sent);
    websocket_put(c, WS_TEXT, text, (size_t)bytes);
}

static bool says(const char *text, size_t bytes, const char *what) {
    return memmem(text, bytes < TYPE_WITHIN_BYTES ? bytes : TYPE_WITHIN_BYTES, what, strlen(what));
}

static uint64_t number_after(const char *text, size_t bytes, const char *key) {
    const char *found = memmem(text, bytes, key, strlen(key));
    return found ? strtoull(found + strlen(key), NULL, 10) : 0;
}

/* "dropped": the server tells which offsets it skipped. */
static void noticed(struct connection *c, const char *text, size_t bytes) {
    if (!says(text, bytes, "\"dropped\"")) return;
    c->notices++;
    c->noticed_lost += number_after(text, bytes, "\"last\":") - number_after(text, bytes, "\"first\":") + 1;
}

static void other_frame(struct connection *c, const char *text, size_t bytes) {
    if (says(text, bytes, "\"type\":\"ack\"")) {
        if (c->role == PUBLISHER) publishing_acked(c);
        else setup_ready(c);
    } else if (says(text, bytes, "\"type\":\"event\"")) tally_event(c, text, bytes);
    else if (says(text, bytes, "\"type\":\"info\"")) noticed(c, text, bytes);
    else if (!c->may_close) fail("unexpected frame: %.*s", (int)(bytes < 300 ? bytes : 300), text);
}

static void text_frame(struct connection *c, const char *text, size_t bytes) {
    if (bytes > sizeof EVENT && !memcmp(text, EVENT, sizeof EVENT - 1)) tally_event(c, text, bytes);
    else other_frame(c, text, bytes);
}

static size_t frames(struct connection *c, const char *data, size_t bytes) {
    struct frame frame;
    size_t used = 0;
    while (websocket_frame(&frame, data + used, bytes - used) &&
           frame.header_bytes + frame.payload_bytes <= bytes - used) {
        const char *payload = data + used + frame.header_bytes;
        if (!frame.final) fail("the server split a message into several frames");
        if (frame.opcode == WS_TEXT) text_frame(c, payload, frame.payload_bytes);
        else websocket_control(c, &frame, payload);
        used += frame.header_bytes + frame.payload_bytes;
    }
    return used;
}

static size_t consume(struct connection *c, char *data, size_t bytes) {
    size_t head = 0;
    if (!c->upgraded) {
        head = websocket_upgraded(c, data, bytes);
        if (!c->upgraded) return 0;
        if (c->role == SUBSCRIBER) subscribe(c);
        else setup_ready(c);
    }
    return head + frames(c, data + head, bytes - head);
}

const struct dialect dialect_json = {"json", open_websocket, consume, publish};
