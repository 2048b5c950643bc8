"""The pure core: bytes, values and times go in, values come out.

It knows no socket, clock, log or file, and imports nothing third-party but msgspec. Time is an argument
called `now`: seconds of one monotonic clock. Bytes never raise: what is not understood is counted.

In the order in which a request passes:

    observation   one request, observed; the object that the proxy drives, and the only one it needs
    request       what the request says: model, streaming, choices (`scanning` for bodies too long to keep)
    framing       response bytes -> payloads: server-sent events, lines, one body; any split, bounded
    dialects      payloads -> events, one file an API; which path is which operation
    events        what can be seen on the wire: the vocabulary
    timeline      events with times -> the fields of the record, and every gap live
    choice        one choice of the answer, as far as it has come
    counting      tokens out of the shapes in which engines give usage; the signature of a buffering hop
    waits         when the client would not take bytes
    outcome       how a request ended, in a closed list
    record        RequestRecord: stamps, counts, and the formulas of TTFT, TPOT and the rest
    tracecontext  `traceparent` parsed and derived
"""
