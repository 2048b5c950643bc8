/* The bytes that sse_upstream sends and sse_load expects back, one for one.
 *
 * A token event's content is "@@" + send time (16 hex, CLOCK_MONOTONIC ns) + time at which
 * the request was read (16 hex) + sequence number (8 hex): a client on the same machine can
 * compute one-way delays without knowing what lies between.
 */
#ifndef SSE_EVENT_H
#define SSE_EVENT_H
#include <stdint.h>
#include <time.h>

#define CHUNK_HEAD "data: {\"id\":\"chatcmpl-7c1f3c2ab0f94d0fa6c5b3bd9d5a7f2e\",\"object\":\"chat.completion.chunk\"," \
    "\"created\":1731000000,\"model\":\"demo-model\",\"choices\":[{\"index\":0,\"delta\":"
#define ROLE_EVENT CHUNK_HEAD "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
#define TOKEN_BEFORE CHUNK_HEAD "{\"content\":\"@@"
#define TOKEN_AFTER "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
#define STAMPS "0000000000000000000000000000000000000000"
#define STAMPS_LEN (sizeof STAMPS - 1)
#define TOKEN_LEN (sizeof TOKEN_BEFORE - 1 + STAMPS_LEN + sizeof TOKEN_AFTER - 1)
#define FINISH_EVENT CHUNK_HEAD "{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
#define DONE_EVENT "data: [DONE]\n\n"
#define COMPLETION "{\"id\":\"chatcmpl-7c1f3c2ab0f94d0fa6c5b3bd9d5a7f2e\",\"object\":\"chat.completion\"," \
    "\"created\":1731000000,\"model\":\"demo-model\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\"," \
    "\"content\":\"ok\"},\"logprobs\":null,\"finish_reason\":\"stop\"}]," \
    "\"usage\":{\"prompt_tokens\":9,\"total_tokens\":10,\"completion_tokens\":1}}"

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}
#endif
