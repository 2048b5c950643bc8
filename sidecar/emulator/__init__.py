"""An engine with known timing: looks like vLLM's OpenAI server, and knows what each request's time went into.

    asked      what a request body asks for, or the error that vLLM would answer
    answers    what the model says: one piece a token
    costs      PURE: the work of one step -> how long it takes
    kv_cache   PURE: blocks of tokens, and the prefix cache over them
    sequence   what one sequence has to do and where its time went
    scheduler  PURE: arrivals and lengths in, steps with their tokens out; time is an argument
    clock      PURE: a wall clock that may be wrong
    wire       pieces -> the bytes that vLLM sends
    engine     one timer for the step; hands the tokens to the open requests
    exchange   one request and its response, as it should be or broken
    stream     one write a step
    exposition what was recorded when -> vLLM's /metrics page; `families` are its names
    spans      a finished sequence -> vLLM's `llm_request` span; `exporter` posts them in batches
    truth      a finished sequence -> what really happened
    options    what the engine is and does wrong; `arguments` reads them
    server     aiohttp around all that
    load       a light open-loop load generator, for the demo
    children, readings, table   the parts of `sidecar demo`

Every duration on the metrics page, in the answers and in the spans is one of the schedule, so it is the
truth that a measurement can be compared with; the bytes follow it by what the event loop needs to wake up
(about a millisecond).
"""
