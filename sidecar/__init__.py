"""A reverse proxy in front of one LLM inference server that measures what its clients live through.

The map, from the outside in:

    client  <== bytes ==>  proxy  <== bytes ==>  engine
                             | bytes, now
                             v
              core.framing -> core.dialects -> core.timeline -> RequestRecord
                                                                     |
                                              metrics . history . admin page
                                                                     ^
    engine's metrics page -> scraper -> engines (tables) -> EngineSignals -> engine_view

`cli` and `commands` are what people type; `app` names every part once and puts them together.
`proxy` moves the bytes and stamps them (`front` faces the clients, `upstream` and `pool` the engine,
`relay` joins the two); it never waits for anything that observes.
`core` is pure: bytes, values and times go in, values come out. It knows no socket, clock or log.
`engines` holds what each engine calls its signals, as tables; `scraper` reads the engine's metrics page by
them, never in the way of a relayed byte, and `engine_view` shows what it says under our names.
`catalogue` holds every exported name as data; `metrics` is the store behind `/metrics`;
`config` is the only reader of files and environment.
`joins` and `windows` put the engine's own durations beside the clients' view, of one request and of many.
`tracing` makes spans of requests and passes the engine's on (`otlp_exporter`, `otlp_receiver`,
`otlp_messages`).
`emulator` is an engine with known timing, for the demo and the tests.

All times are seconds of one monotonic clock, taken when a socket read returns and handed inward as
an argument. A value that was not observed is `None`, never 0.
"""

__version__ = "0.1.0"
