/* sse_load: load client for streaming reverse proxies, loopback only, partner of sse_upstream.
 *
 * One thread, epoll, keep-alive.  Opens -c connections spread over -d milliseconds, sends -r
 * requests on each (the next when the last answer is complete), decodes the framing and checks
 * order, completeness and every byte of every event.  From the stamps in the events:
 *   event_us  send() at the upstream -> recv() here, each token event
 *   ttft_us   time to the first token seen here minus the part spent in the upstream (its read
 *             of the request -> its send of the first token): transit of request and first token
 *   req_us    the whole request (-u: unary)
 * Prints one JSON line with percentiles.  Stops after -t seconds whatever happens.
 *
 * Run: ./sse_load -p PORT -c 64 -r 1 [-u] [-t 60] [-d stagger_ms] [-b pad_bytes] [-P path]
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
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sse_event.h"

typedef struct { uint32_t *v; size_t n, cap; } samples;
enum state { HEAD, BODY };
enum chunk_state { SIZE, DATA, CRLF, TRAILER };
typedef struct {
    int fd, alive, requests, chunked, close_after, until_close, got_role, got_finish, got_done;
    enum state state; enum chunk_state chunk;
    long remain, seq;
    char *in; size_t in_len, in_cap;        /* as received */
    char *body; size_t body_len, body_cap;  /* decoded, not yet checked */
    uint64_t sent_ns;
} conn;

static int port = 9000, conns = 64, reqs = 1, unary, max_s = 60, stagger_ms = 200, pad;
static const char *path = "/v1/chat/completions";
static samples event_ns, ttft_ns, request_ns;
static unsigned long long tokens, done, errors, bytes, seq_errors, altered, recvs;
static int ep, active;
static char *request; static size_t request_len;
static struct sockaddr_in address;
static char first_error[512];

static void push(samples *a, uint64_t ns) {
    if (a->n == a->cap) { a->cap = a->cap ? a->cap * 2 : 65536; a->v = realloc(a->v, a->cap * sizeof *a->v); }
    a->v[a->n++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}
static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}
static double quantile_us(samples *a, double q) { return a->n ? a->v[(size_t)((a->n - 1) * q)] / 1000.0 : 0; }
static void print_samples(const char *name, samples *a) {
    if (a->n) qsort(a->v, a->n, sizeof *a->v, by_value);
    printf(",\"%s\":{\"n\":%zu,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}", name, a->n,
           quantile_us(a, .5), quantile_us(a, .9), quantile_us(a, .99), quantile_us(a, .999), quantile_us(a, 1));
}

/* --- connections --- */
static void fail(conn *c, const char *why) {
    errors++;
    if (!first_error[0]) snprintf(first_error, sizeof first_error, "%s", why);
    if (c->fd >= 0) close(c->fd);
    c->fd = -1; c->alive = 0; active--;
}
static void send_request(conn *c) {
    c->state = HEAD;
    c->in_len = c->body_len = 0; c->seq = c->remain = 0;
    c->got_role = c->got_finish = c->got_done = c->close_after = c->until_close = c->chunked = 0;
    c->sent_ns = now_ns();
    if (send(c->fd, request, request_len, MSG_NOSIGNAL) != (ssize_t)request_len) fail(c, "short send");
}
static void open_conn(conn *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&address, sizeof address)) { fail(c, "connect"); return; }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    send_request(c);
}
static void finish(conn *c) {
    if (!unary && !c->got_done) { fail(c, "no [DONE]"); return; }
    if (unary) {
        push(&request_ns, now_ns() - c->sent_ns);
        altered += c->body_len != sizeof COMPLETION - 1 || memcmp(c->body, COMPLETION, c->body_len);
    }
    done++;
    if (++c->requests >= reqs) { close(c->fd); c->fd = -1; c->alive = 0; active--; return; }
    if (c->close_after) { close(c->fd); open_conn(c); return; }
    send_request(c);
}

/* --- events --- */
static uint64_t unhex(const char *p, int n) {
    uint64_t v = 0;
    for (; n--; p++) v = v << 4 | (*p <= '9' ? *p - '0' : *p - 'a' + 10);
    return v;
}
static int is_token(const char *p, size_t n) {
    return n == TOKEN_LEN && !memcmp(p, TOKEN_BEFORE, sizeof TOKEN_BEFORE - 1) &&
           !memcmp(p + n - (sizeof TOKEN_AFTER - 1), TOKEN_AFTER, sizeof TOKEN_AFTER - 1);
}
static void token(conn *c, const char *stamps, uint64_t now) {
    uint64_t sent = unhex(stamps, 16), read = unhex(stamps + 16, 16);
    long seq = unhex(stamps + 32, 8);
    seq_errors += seq != c->seq || !c->got_role || c->got_finish;
    push(&event_ns, now - sent);
    if (c->seq == 0) push(&ttft_ns, (now - c->sent_ns) - (sent - read));
    c->seq = seq + 1; tokens++;
}
/* Each of the three events that frame a stream: once, and in its place. */
static void framing_event(int *seen, int before, int after) { seq_errors += *seen || !before || after; *seen = 1; }
#define IS(p, n, event) ((n) == sizeof event - 1 && !memcmp(p, event, sizeof event - 1))
static void check_events(conn *c, uint64_t now) {
    char *p = c->body, *end = c->body + c->body_len, *nl;
    for (; (nl = memmem(p, end - p, "\n\n", 2)); p = nl + 2) {
        size_t n = nl + 2 - p;
        if (is_token(p, n)) token(c, p + sizeof TOKEN_BEFORE - 1, now);
        else if (IS(p, n, ROLE_EVENT)) framing_event(&c->got_role, 1, c->seq > 0 || c->got_finish);
        else if (IS(p, n, FINISH_EVENT)) framing_event(&c->got_finish, c->got_role, c->got_done);
        else if (IS(p, n, DONE_EVENT)) framing_event(&c->got_done, c->got_finish, 0);
        else altered++;
    }
    c->body_len = end - p;
    memmove(c->body, p, c->body_len);
}

/* --- response framing --- */
static void keep(conn *c, const char *p, size_t n) {
    if (c->body_len + n > c->body_cap) c->body = realloc(c->body, c->body_cap = (c->body_len + n) * 2);
    memcpy(c->body + c->body_len, p, n);
    c->body_len += n;
}
/* Bytes used by the head, 0: not all here, -1: the request failed. */
static long parse_head(conn *c) {
    c->in[c->in_len] = 0;
    char *e = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!e) return 0;
    if (strncmp(c->in + 9, "200", 3)) { fail(c, c->in); return -1; }
    *e = 0;
    char *length = strcasestr(c->in, "\r\ncontent-length:");
    c->chunked = strcasestr(c->in, "\r\ntransfer-encoding: chunked") != NULL;
    c->close_after = strcasestr(c->in, "\r\nconnection: close") != NULL;
    if (length) c->remain = atol(length + 17);
    else if (!c->chunked) c->until_close = c->close_after = 1;
    c->chunk = SIZE; c->state = BODY;
    return e - c->in + 4;
}
/* One step of chunked decoding from p; returns bytes used, 0: more needed; sets *complete. */
static size_t chunk_step(conn *c, char *p, size_t n, int *complete) {
    if (c->chunk == DATA) {
        size_t k = (long)n > c->remain ? (size_t)c->remain : n;
        keep(c, p, k);
        if (!(c->remain -= k)) c->chunk = CRLF;
        return k;
    }
    char *nl = memmem(p, n, "\r\n", 2);
    if (!nl) return 0;
    if (c->chunk == SIZE) { c->remain = strtol(p, NULL, 16); c->chunk = c->remain ? DATA : TRAILER; }
    else if (c->chunk == CRLF) c->chunk = SIZE;
    else *complete = nl == p;
    return nl + 2 - p;
}
/* Consumes what was read at `now`; returns 1 when the response is complete. */
static int parse(conn *c, uint64_t now) {
    size_t i = 0, k;
    int complete = 0;
    if (c->state == HEAD) {
        long head = parse_head(c);
        if (head <= 0) return 0;
        i = head;
    }
    if (c->chunked) {
        while (!complete && i < c->in_len && (k = chunk_step(c, c->in + i, c->in_len - i, &complete))) i += k;
    } else {
        keep(c, c->in + i, c->in_len - i);
        c->remain -= c->in_len - i;
        complete = !c->until_close && c->remain <= 0;
        i = c->in_len;
    }
    c->in_len -= i;
    memmove(c->in, c->in + i, c->in_len);
    if (!unary) check_events(c, now);
    return complete;
}
static void on_readable(conn *c) {
    if (!c->alive || c->fd < 0) return;
    ssize_t r = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, MSG_DONTWAIT);
    uint64_t now = now_ns();
    if (r < 0 && errno == EAGAIN) return;
    if (r < 0) { fail(c, strerror(errno)); return; }
    if (r == 0 && c->until_close && c->state == BODY) { finish(c); return; }
    if (r == 0) { fail(c, c->state == HEAD ? "closed before the head" : "closed in the body"); return; }
    bytes += r; recvs++; c->in_len += r;
    if (parse(c, now)) finish(c);
}

/* --- main --- */
static void build_request(void) {
    char *body = malloc(pad + 1024), *padding = calloc(pad + 1, 1);
    memset(padding, 'x', pad);
    int n = sprintf(body, "{\"model\":\"demo-model\",\"messages\":[{\"role\":\"user\",\"content\":\"hi%s\"}],"
                    "\"max_tokens\":256,\"stream\":%s}", padding, unary ? "false" : "true");
    request = malloc(n + 1024);
    request_len = sprintf(request, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: sse_load\r\nAccept: */*\r\n"
                          "Authorization: Bearer sk-1234\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                          path, port, n, body);
}
static void options(int argc, char **argv) {
    for (int o; (o = getopt(argc, argv, "p:c:r:ut:d:b:P:")) > 0;) switch (o) {
        case 'p': port = atoi(optarg); break;
        case 'c': conns = atoi(optarg); break;
        case 'r': reqs = atoi(optarg); break;
        case 'u': unary = 1; break;
        case 't': max_s = atoi(optarg); break;
        case 'd': stagger_ms = atoi(optarg); break;
        case 'b': pad = atoi(optarg); break;
        case 'P': path = optarg; break;
        default: exit(2);
    }
}
static conn *make_conns(void) {
    conn *cs = calloc(conns, sizeof *cs);
    for (int i = 0; i < conns; i++) {
        cs[i].fd = -1; cs[i].alive = 1;
        cs[i].in_cap = 65536; cs[i].in = malloc(cs[i].in_cap + 1);
        cs[i].body_cap = 4096; cs[i].body = malloc(cs[i].body_cap);
    }
    return cs;
}
static void print_result(double elapsed) {
    printf("{\"conns\":%d,\"reqs\":%d,\"elapsed_s\":%.3f,\"done\":%llu,\"tokens\":%llu,\"recvs\":%llu,\"bytes\":%llu,"
           "\"errors\":%llu,\"seq_errors\":%llu,\"altered\":%llu,\"unfinished\":%d,\"tok_per_s\":%.0f,\"req_per_s\":%.0f",
           conns, reqs, elapsed, done, tokens, recvs, bytes, errors, seq_errors, altered, active,
           tokens / elapsed, done / elapsed);
    print_samples("event_us", &event_ns); print_samples("ttft_us", &ttft_ns); print_samples("req_us", &request_ns);
    for (char *p = first_error; *p; p++) if (*p < 32 || *p == '"' || *p == '\\') *p = ' ';
    printf(",\"first_error\":\"%s\"}\n", first_error);
}
int main(int argc, char **argv) {
    struct epoll_event events[512];
    options(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    build_request();
    ep = epoll_create1(0);
    conn *cs = make_conns();
    active = conns;
    int started = 0;
    uint64_t start = now_ns(), end = start + max_s * 1000000000ull;
    for (uint64_t now = start; active > 0 && now < end; now = now_ns()) {
        while (started < conns && now - start >= (uint64_t)started * stagger_ms * 1000000ull / conns) open_conn(&cs[started++]);
        int k = epoll_wait(ep, events, 512, started < conns ? 1 : 100);
        for (int i = 0; i < k; i++) on_readable(events[i].data.ptr);
    }
    print_result((now_ns() - start) / 1e9);
    return errors || seq_errors || altered || active ? 1 : 0;
}
