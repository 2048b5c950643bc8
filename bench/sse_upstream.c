/* sse_upstream: a loopback emulator of an OpenAI-style inference server, as cheap as possible.
 *
 * One thread, epoll.  A POST whose body asks for "stream":true gets a chunked
 * text/event-stream answer: a role event, n token events, a finish event, [DONE].
 * Every event is one send(), as uvicorn does it.  Any other request gets small JSON.
 *
 * GET /__set?n=200&rate=40&delay_us=5000&step=0 changes what later streams do:
 *   n         token events in a stream
 *   rate      tokens/s in each stream; 0: as fast as the socket takes them
 *   delay_us  time before the first token
 *   step      1: all streams tick together (an engine's decode step), 0: random phases
 * GET /__stats returns counters.
 *
 * Run: ./sse_upstream PORT   (binds to 127.0.0.1 only)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sse_event.h"

#define MAXFD 65536

static struct { long n, rate, delay_us, step; } cfg = {200, 40, 0, 0};
static struct { unsigned long long events, requests, unary, blocked, late_ns; long open; } stats;

typedef struct {
    int fd, open, streaming, want_out;
    char *in; size_t in_len, in_cap;
    char *out; size_t out_len, out_off, out_cap;
    long seq, n, rate;              /* seq: -1 role, 0..n-1 tokens, n finish and [DONE] */
    uint64_t due, period, read_ns;
    int heap_pos, in_run;           /* heap_pos -1: not waiting for a due time */
} conn;

static conn *conns[MAXFD];
static int heap[MAXFD], heap_n;                 /* paced streams by due time */
static int runq[MAXFD], run_head, run_tail;     /* unpaced streams that may send */
static int ep, listener;

/* --- heap of due times --- */
static void swap(int a, int b) {
    int t = heap[a]; heap[a] = heap[b]; heap[b] = t;
    conns[heap[a]]->heap_pos = a; conns[heap[b]]->heap_pos = b;
}
static uint64_t due(int i) { return conns[heap[i]]->due; }
static void sift_up(int i) {
    for (int p; i > 0 && due(p = (i - 1) / 2) > due(i); i = p) swap(p, i);
}
static void sift_down(int i) {
    for (;;) {
        int l = 2 * i + 1, r = l + 1, m = i;
        if (l < heap_n && due(l) < due(m)) m = l;
        if (r < heap_n && due(r) < due(m)) m = r;
        if (m == i) return;
        swap(m, i);
        i = m;
    }
}
static void wait_for_due(conn *c) { heap[heap_n] = c->fd; c->heap_pos = heap_n++; sift_up(c->heap_pos); }
static void stop_waiting(conn *c) {
    int i = c->heap_pos;
    if (i < 0) return;
    if (--heap_n != i) { swap(i, heap_n); sift_down(i); sift_up(i); }
    c->heap_pos = -1;
}
static void run_soon(conn *c) {
    if (c->in_run) return;
    c->in_run = 1; runq[run_tail] = c->fd; run_tail = (run_tail + 1) % MAXFD;
}

/* --- output --- */
static void watch_out(conn *c, int out) {
    if (c->want_out == out) return;
    c->want_out = out;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.fd = c->fd};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
static void close_conn(conn *c) {
    stop_waiting(c);
    if (c->streaming) stats.open--;
    close(c->fd);
    c->open = c->streaming = c->want_out = 0; c->in_len = c->out_len = c->out_off = 0;
}
/* 1: everything went out, 0: blocked, -1: closed */
static int flush(conn *c) {
    while (c->out_off < c->out_len) {
        ssize_t w = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
        if (w < 0 && errno == EAGAIN) { stats.blocked++; watch_out(c, 1); return 0; }
        if (w < 0) { close_conn(c); return -1; }
        c->out_off += w;
    }
    c->out_len = c->out_off = 0;
    watch_out(c, 0);
    return 1;
}
static int put(conn *c, const char *p, size_t n) {
    if (c->out_len + n > c->out_cap) {
        c->out_cap = (c->out_len + n) * 2;
        c->out = realloc(c->out, c->out_cap);
    }
    memcpy(c->out + c->out_len, p, n);
    c->out_len += n;
    return flush(c);
}

/* --- streams --- */
static char token[1024], role[1024], finish[2048];
static size_t token_len, role_len, finish_len, stamps_at;

static size_t chunk(char *to, const char *event) { return sprintf(to, "%zx\r\n%s\r\n", strlen(event), event); }
static void build_templates(void) {
    token_len = chunk(token, TOKEN_BEFORE STAMPS TOKEN_AFTER);
    stamps_at = strstr(token, "@@") - token + 2;
    role_len = chunk(role, ROLE_EVENT);
    finish_len = chunk(finish, FINISH_EVENT);
    finish_len += chunk(finish + finish_len, DONE_EVENT);
    finish_len += sprintf(finish + finish_len, "0\r\n\r\n");
}
static void hex(char *p, uint64_t v, int n) {
    while (n--) { p[n] = "0123456789abcdef"[v & 15]; v >>= 4; }
}
static void process_input(conn *c);
static void end_stream(conn *c) {
    c->streaming = 0; stats.open--;
    stop_waiting(c);
    if (c->in_len) process_input(c);
}
/* Sends the next event; returns like flush(), and 2 when the stream has ended. */
static int send_next(conn *c) {
    int r;
    if (c->seq < 0) r = put(c, role, role_len);
    else if (c->seq < c->n) {
        hex(token + stamps_at, now_ns(), 16);
        hex(token + stamps_at + 16, c->read_ns, 16);
        hex(token + stamps_at + 32, c->seq, 8);
        stats.events++;
        r = put(c, token, token_len);
    } else {
        if ((r = put(c, finish, finish_len)) < 0) return r;
        end_stream(c);
        return 2;
    }
    if (r >= 0) c->seq++;
    return r;
}
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "transfer-encoding: chunked\r\n\r\n";
static void start_stream(conn *c) {
    stats.requests++; stats.open++;
    c->streaming = 1; c->seq = -1; c->n = cfg.n; c->rate = cfg.rate; c->read_ns = now_ns();
    if (put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1) < 0) return;
    if (c->rate == 0) { run_soon(c); return; }
    c->period = 1000000000ull / c->rate;
    uint64_t first = c->read_ns + cfg.delay_us * 1000ull;
    c->due = cfg.step ? (first / c->period + 1) * c->period : first + (uint64_t)(drand48() * c->period);
    wait_for_due(c);
}

/* --- requests --- */
static void answer(conn *c, const char *body) {
    char b[4096];
    int k = snprintf(b, sizeof b, "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\n"
                     "content-length: %zu\r\n\r\n%s", strlen(body), body);
    put(c, b, k);
}
static long query(const char *line, const char *key, long otherwise) {
    const char *p = strstr(line, key);
    return p ? atol(p + strlen(key)) : otherwise;
}
static void set(conn *c, const char *line) {
    cfg.n = query(line, "?n=", cfg.n); cfg.rate = query(line, "rate=", cfg.rate);
    cfg.delay_us = query(line, "delay_us=", cfg.delay_us); cfg.step = query(line, "step=", cfg.step);
    answer(c, "{}");
}
static void show_stats(conn *c) {
    char b[256];
    snprintf(b, sizeof b, "{\"events\":%llu,\"requests\":%llu,\"unary\":%llu,\"blocked\":%llu,\"open\":%ld,"
             "\"max_late_us\":%llu}", stats.events, stats.requests, stats.unary, stats.blocked, stats.open,
             stats.late_ns / 1000);
    stats.late_ns = 0;
    answer(c, b);
}
static void respond(conn *c, const char *line, int stream) {
    if (stream) start_stream(c);
    else if (strstr(line, "/__set")) set(c, line);
    else if (strstr(line, "/__stats")) show_stats(c);
    else if (strstr(line, "/v1/models"))
        answer(c, "{\"object\":\"list\",\"data\":[{\"id\":\"demo-model\",\"object\":\"model\",\"created\":1,"
                  "\"owned_by\":\"demo\",\"max_model_len\":8192}]}");
    else { stats.unary++; answer(c, COMPLETION); }
}
/* Length of a chunked body, -1: not all here.  Trusts its peer: good enough for an emulator. */
static long chunked_length(const char *body, const char *end) {
    for (const char *p = body;;) {
        char *nl = memmem(p, end - p, "\r\n", 2);
        if (!nl) return -1;
        unsigned long size = strtoul(p, NULL, 16);
        if (size > (size_t)(end - nl) || (p = nl + 2 + size + 2) > end) return -1;
        if (size == 0) return p - body;
    }
}
static long body_length(conn *c, char *head_end) {
    long length = 0;
    for (char *p = c->in, *nl; p < head_end && (nl = memmem(p, head_end + 2 - p, "\r\n", 2)); p = nl + 2) {
        if (!strncasecmp(p, "content-length:", 15)) length = strtol(p + 15, NULL, 10);
        if (!strncasecmp(p, "transfer-encoding:", 18)) return chunked_length(head_end + 4, c->in + c->in_len);
    }
    return length;
}
static int asks_for_stream(const char *body, size_t n) {
    const char *s = memmem(body, n, "\"stream\"", 8);
    if (!s) return 0;
    for (s += 8; s < body + n && (*s == ' ' || *s == ':'); s++) ;
    return s < body + n && *s == 't';
}
static void process_input(conn *c) {
    while (c->open && !c->streaming && c->in_len) {
        char *e = memmem(c->in, c->in_len, "\r\n\r\n", 4);
        if (!e) return;
        size_t head = e - c->in + 4;
        long body = body_length(c, e);
        if (body < 0 || c->in_len < head + body) return;
        char line[512] = {0};
        size_t line_len = (char *)memmem(c->in, head, "\r\n", 2) - c->in;
        memcpy(line, c->in, line_len < sizeof line ? line_len : sizeof line - 1);
        int stream = strncmp(line, "GET ", 4) && asks_for_stream(c->in + head, body);
        c->in_len -= head + body;
        memmove(c->in, c->in + head + body, c->in_len);
        respond(c, line, stream);
    }
}

/* --- event loop --- */
static void accept_some(void) {
    int one = 1;
    for (int i = 0; i < 64; i++) {
        int s = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (s < 0) return;
        if (s >= MAXFD) { close(s); continue; }
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conn *c = conns[s];
        if (!c) { c = conns[s] = calloc(1, sizeof *c); c->in = malloc(c->in_cap = 8192); }
        c->fd = s; c->open = 1; c->heap_pos = -1;
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = s};
        epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
    }
}
static void read_some(conn *c) {
    for (ssize_t r = 4096; r >= 4096;) {
        if (c->in_len + 4096 > c->in_cap) c->in = realloc(c->in, c->in_cap *= 2);
        r = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
        if (r < 0 && errno == EAGAIN) break;
        if (r <= 0) { close_conn(c); return; }
        c->in_len += r;
    }
    process_input(c);
}
static void on_event(struct epoll_event *e) {
    if (e->data.fd == listener) { accept_some(); return; }
    conn *c = conns[e->data.fd];
    if (!c || !c->open) return;
    if (e->events & (EPOLLERR | EPOLLHUP)) { close_conn(c); return; }
    if (e->events & EPOLLIN) read_some(c);
    if (c->open && (e->events & EPOLLOUT) && flush(c) == 1 && c->streaming && c->rate == 0) run_soon(c);
}
static void send_due(void) {
    uint64_t now = now_ns();
    while (heap_n && due(0) <= now) {
        conn *c = conns[heap[0]];
        if (now - c->due > stats.late_ns) stats.late_ns = now - c->due;
        c->due += c->period;
        sift_down(0);
        if (c->out_off < c->out_len) continue;      /* the client does not read: skip this tick */
        if (c->seq < 0 && send_next(c) < 0) continue;
        send_next(c);
    }
}
static void send_unpaced(void) {
    for (int todo = (run_tail - run_head + MAXFD) % MAXFD; todo--;) {
        conn *c = conns[runq[run_head]];
        run_head = (run_head + 1) % MAXFD; c->in_run = 0;
        if (c->open && c->streaming && c->rate == 0 && send_next(c) == 1) run_soon(c);
    }
}
static void listen_on(int port) {
    int one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 4096)) { perror("listen"); exit(1); }
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(ep = epoll_create1(0), EPOLL_CTL_ADD, listener, &e);
}
int main(int argc, char **argv) {
    struct epoll_event events[512];
    if (argc != 2) { fprintf(stderr, "usage: sse_upstream PORT\n"); return 2; }
    signal(SIGPIPE, SIG_IGN);
    srand48(42);
    build_templates();
    listen_on(atoi(argv[1]));
    for (;;) {
        struct timespec wait = {0, 0};
        int forever = run_head == run_tail && !heap_n;
        if (run_head == run_tail && heap_n) {
            uint64_t now = now_ns(), ns = due(0) > now ? due(0) - now : 0;
            wait.tv_sec = ns / 1000000000ull; wait.tv_nsec = ns % 1000000000ull;
        }
        int k = epoll_pwait2(ep, events, 512, forever ? NULL : &wait, NULL);
        if (k < 0 && errno != EINTR) { perror("epoll"); return 1; }
        for (int i = 0; i < k; i++) on_event(&events[i]);
        send_due();
        send_unpaced();
    }
}
