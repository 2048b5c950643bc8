"""An engine with known timing: looks like vLLM's OpenAI server, and says beforehand when each token falls.

    asked      what a request body asks for, or the error that vLLM would answer
    answers    what the model says: one piece a token
    schedule   PURE: arrivals and lengths in, the instant of every token out; time is an argument
    wire       pieces -> the bytes that vLLM sends
    exposition the schedule's facts -> vLLM's /metrics page
    engine     sleeps until the planned instants and hands the tokens to the open requests
    server     aiohttp around all that
    load       a light open-loop load generator, for the demo
    children, readings, table   the parts of `sidecar demo`

Every instant on the engine's metrics page is a planned one, so the page is the truth that a measurement
can be compared with; the bytes follow it by what the event loop needs to wake up (about a millisecond).
"""
