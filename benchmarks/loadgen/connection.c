#include "connection.h"
#include "clock.h"
#include "dialect.h"
#include "options.h"
#include "report.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RECEIVE_BYTES = 256 * 1024, EVENTS_PER_TURN = 64 };

uint64_t received_ns;

static int epoll = -1;

/* One buffer for everyone: it stays in the cache, and an idle connection costs no memory. */
static char buffer[RECEIVE_BYTES];

void loop_open(void) {
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0) fail("epoll_create1: %s", strerror(errno));
}

static void watch(struct connection *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll, operation, c->fd, &event) < 0) fail("epoll_ctl: %s", strerror(errno));
}

struct connection *connection_new(enum role role, int number) {
    struct connection *c = calloc(1, sizeof *c);
    if (!c) fail("out of memory");
    c->role = role;
    c->number = number;
    c->fd = -1;
    if (role == PUBLISHER) c->sent_at = calloc((size_t)options.in_flight, sizeof *c->sent_at);
    return c;
}

void connection_connect(struct connection *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    int on = 1;
    inet_pton(AF_INET, options.address, &to.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("socket: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)
        fail("connect to port %d: %s", options.port, strerror(errno));
    watch(c, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
    c->waits_for_room = true;
}

static void grow(char **data, size_t *room, size_t needed) {
    if (needed <= *room) return;
    *room = needed < 512 ? 512 : needed * 2;
    *data = realloc(*data, *room);
    if (!*data) fail("out of memory");
}

void connection_put(struct connection *c, const void *data, size_t bytes) {
    grow(&c->out, &c->out_room, c->out_bytes + bytes);
    memcpy(c->out + c->out_bytes, data, bytes);
    c->out_bytes += bytes;
}

void connection_flush(struct connection *c) {
    if (!c->out_bytes || c->stage == CONNECTING || c->stage == CLOSED) return;
    ssize_t sent = send(c->fd, c->out, c->out_bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) fail("send: %s", strerror(errno));
    if (sent < 0) sent = 0;
    c->out_bytes -= (size_t)sent;
    memmove(c->out, c->out + sent, c->out_bytes);
    bool wait = c->out_bytes > 0;
    if (wait != c->waits_for_room) {
        watch(c, EPOLL_CTL_MOD, wait ? EPOLLIN | EPOLLOUT : EPOLLIN);
        c->waits_for_room = wait;
    }
}

static void connected(struct connection *c) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) fail("connect to port %d: %s", options.port, strerror(error));
    c->stage = OPENING;
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    c->waits_for_room = false;
    dialect->open(c);
    connection_flush(c);
}

static void hung_up(struct connection *c, const char *why) {
    if (!c->may_close)
        fail("the server closed the connection of %s %d (%s) after %llu events",
             c->role == PUBLISHER ? "publisher" : "subscriber", c->number, why, (unsigned long long)c->events);
    connection_close(c);
}

void connection_receive(struct connection *c) {
    if (c->stage == CLOSED) return;
    if (c->carry_bytes) memcpy(buffer, c->carry, c->carry_bytes);
    ssize_t got = recv(c->fd, buffer + c->carry_bytes, sizeof buffer - c->carry_bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        hung_up(c, got ? strerror(errno) : "end of stream");
        return;
    }
    if (c->sampled) received_ns = now_ns();
    size_t have = c->carry_bytes + (size_t)got;
    size_t used = dialect->consume(c, buffer, have);
    if (c->stage == CLOSED) return;
    c->carry_bytes = have - used;
    if (c->carry_bytes == sizeof buffer) fail("a single message of the server is larger than %d bytes", RECEIVE_BYTES);
    if (c->carry_bytes) {
        grow(&c->carry, &c->carry_room, c->carry_bytes);
        memcpy(c->carry, buffer + used, c->carry_bytes);
    }
    connection_flush(c);
}

void connection_deafen(struct connection *c) {
    c->deaf = true;
    watch(c, EPOLL_CTL_DEL, 0);
}

void connection_listen_again(struct connection *c) {
    c->deaf = false;
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

void connection_close(struct connection *c) {
    if (c->stage == CLOSED) return;
    c->stage = CLOSED;
    close(c->fd);
    free(c->carry);
    c->carry = NULL;
    c->carry_bytes = c->carry_room = 0;
}

void loop_turn(uint64_t wait_ns) {
    struct epoll_event events[EVENTS_PER_TURN];
    struct timespec wait = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
    int ready = epoll_pwait2(epoll, events, EVENTS_PER_TURN, &wait, NULL);
    if (ready < 0 && errno != EINTR) fail("epoll_pwait2: %s", strerror(errno));
    for (int i = 0; i < ready; i++) {
        struct connection *c = events[i].data.ptr;
        if (c->stage == CONNECTING) connected(c);
        else {
            if (events[i].events & EPOLLOUT) connection_flush(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) connection_receive(c);
        }
    }
}
