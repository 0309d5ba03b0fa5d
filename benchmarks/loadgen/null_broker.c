/* The null broker: what is left of a WebSocket broker when it does nothing but receive and send.

   It stores nothing, checks nothing, knows one topic, and joins all publishes that came in one read into one write per
   subscriber. No real broker can be quicker with this protocol on this machine, so its figure shows what the load
   generator can take. Usage: null_broker PORT */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { INPUT_BYTES = 64 * 1024, TICK_BYTES = 256 * 1024, BACKLOG_BYTES = 4 * 1024 * 1024, SUBSCRIBERS_MAX = 16000 };

struct client {
    int fd;
    bool upgraded;
    char *input;
    size_t input_bytes;
    char *backlog;         /* what the socket did not take */
    size_t backlog_bytes;
};

static int epoll;
static struct client *subscribers[SUBSCRIBERS_MAX];
static int subscriber_count;
static char tick[TICK_BYTES];
static size_t tick_bytes;
static unsigned long long offset;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void watch(struct client *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll, operation, c->fd, &event) < 0) die("epoll_ctl");
}

static void give(struct client *c, const char *data, size_t bytes) {
    ssize_t sent = c->backlog_bytes ? 0 : send(c->fd, data, bytes, MSG_NOSIGNAL);
    if (sent < 0) sent = 0;
    size_t left = bytes - (size_t)sent;
    if (!left) return;
    if (!c->backlog && !(c->backlog = malloc(BACKLOG_BYTES))) die("malloc");
    if (c->backlog_bytes + left > BACKLOG_BYTES) die("a client reads too slowly");
    memcpy(c->backlog + c->backlog_bytes, data + sent, left);
    c->backlog_bytes += left;
    watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
}

static void give_backlog(struct client *c) {
    ssize_t sent = send(c->fd, c->backlog, c->backlog_bytes, MSG_NOSIGNAL);
    if (sent <= 0) return;
    c->backlog_bytes -= (size_t)sent;
    memmove(c->backlog, c->backlog + sent, c->backlog_bytes);
    if (!c->backlog_bytes) watch(c, EPOLL_CTL_MOD, EPOLLIN);
}

static size_t frame(char *into, const char *payload, size_t bytes) {
    size_t head = bytes < 126 ? 2 : 4;
    into[0] = (char)0x81;
    into[1] = (char)(bytes < 126 ? bytes : 126);
    if (head == 4) {
        into[2] = (char)(bytes >> 8);
        into[3] = (char)bytes;
    }
    memcpy(into + head, payload, bytes);
    return head + bytes;
}

static void acknowledge(char *acks, size_t *ack_bytes, const char *request_id) {
    char text[256];
    int bytes = snprintf(text, sizeof text, "{\"type\":\"ack\",\"request_id\":%s", request_id);
    *ack_bytes += frame(acks + *ack_bytes, text, (size_t)bytes);
}

/* One unmasked text frame of the generator; the request's id is the last thing in it. */
static void take(struct client *c, char *text, size_t bytes, char *acks, size_t *ack_bytes) {
    static char event[INPUT_BYTES];
    char saved = text[bytes], *end = text + bytes;
    text[bytes] = 0;
    char *request = memmem(text, bytes, "\"request_id\":", 13), *message = memmem(text, bytes, "\"message\":", 10);
    if (!request) die("no request_id");
    acknowledge(acks, ack_bytes, request + 13);
    if (message) {
        int size = snprintf(event, sizeof event,
                            "{\"type\":\"event\",\"topic\":\"bench\",\"offset\":%llu,\"ts\":\"2025-01-01T00:00:00.000000Z\",%.*s}",
                            offset++, (int)(request - 1 - message), message);
        tick_bytes += frame(tick + tick_bytes, event, (size_t)size);
    } else if (subscriber_count < SUBSCRIBERS_MAX) subscribers[subscriber_count++] = c;
    *end = saved;
}

static size_t take_frames(struct client *c, char *acks, size_t *ack_bytes) {
    size_t used = 0;
    while (c->input_bytes - used >= 6) {
        unsigned char *head = (unsigned char *)c->input + used;
        size_t bytes = head[1] & 0x7f, head_bytes = 6;
        if (bytes == 126) {
            bytes = (size_t)head[2] << 8 | head[3];
            head_bytes = 8;
        }
        if (c->input_bytes - used < head_bytes + bytes) break;
        unsigned char *mask = head + head_bytes - 4, *payload = head + head_bytes;
        for (size_t i = 0; i < bytes; i++) payload[i] ^= mask[i % 4];
        if ((head[0] & 0x0f) == 1) take(c, (char *)payload, bytes, acks, ack_bytes);
        used += head_bytes + bytes;
        if (tick_bytes > TICK_BYTES - INPUT_BYTES) break;
    }
    return used;
}

static void deliver(void) {
    for (int i = 0; tick_bytes && i < subscriber_count; i++) give(subscribers[i], tick, tick_bytes);
    tick_bytes = 0;
}

static void leave(struct client *c) {
    for (int i = 0; i < subscriber_count; i++)
        if (subscribers[i] == c) subscribers[i--] = subscribers[--subscriber_count];
    close(c->fd);
    free(c->input);
    free(c->backlog);
    free(c);
}

static void upgrade(struct client *c) {
    static const char answer[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                 "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    if (!memmem(c->input, c->input_bytes, "\r\n\r\n", 4)) return;
    c->input_bytes = 0;
    c->upgraded = true;
    give(c, answer, sizeof answer - 1);
}

static void receive(struct client *c) {
    static char acks[INPUT_BYTES * 2];
    size_t ack_bytes = 0;
    ssize_t got = recv(c->fd, c->input + c->input_bytes, INPUT_BYTES - 1 - c->input_bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        leave(c);
        return;
    }
    c->input_bytes += (size_t)got;
    if (!c->upgraded) {
        upgrade(c);
        return;
    }
    size_t used = take_frames(c, acks, &ack_bytes);
    c->input_bytes -= used;
    memmove(c->input, c->input + used, c->input_bytes);
    deliver();
    if (ack_bytes) give(c, acks, ack_bytes);
}

static void accept_one(int listener) {
    int on = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    struct client *c = calloc(1, sizeof *c);
    if (!c || !(c->input = malloc(INPUT_BYTES))) die("malloc");
    c->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

static int listen_on(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 1024) < 0) die("listen");
    return fd;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 2) return 2;
    struct client listener = {.fd = listen_on(atoi(argv[1]))};
    epoll = epoll_create1(0);
    watch(&listener, EPOLL_CTL_ADD, EPOLLIN);
    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            struct client *c = events[i].data.ptr;
            if (c == &listener) accept_one(listener.fd);
            else if (events[i].events & EPOLLOUT) give_backlog(c);
            else receive(c);
        }
    }
}
