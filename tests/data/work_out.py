#!/usr/bin/env python3
"""Works out what a recording should measure, slowly and in the plainest way. Imports nothing of the sidecar.

    python3 tests/data/work_out.py                       every recording -> streams/expected.json
    python3 tests/data/work_out.py vllm/plain/chat_stream  that one, printed

Times are integer nanoseconds from the start of the request (`t_ns` of the recording), so that nothing is
rounded; only `tpot_s` is a float of seconds. A value that was not observed is null.

How: all bytes of the response are laid in one row; each byte keeps the time of the socket read it came in.
The head, the chunked framing and the blank lines of the event stream are cut out of that row with plain
searches; an event has the time of its last byte. The rules are those of the measurement model:

- header_ns, first_byte_ns: the read that ended the head; the read with the first body byte.
- token-bearing chunk: one choice of one event with non-empty reasoning (`reasoning`, `reasoning_content`) or
  output (`content`, `text`, `refusal`, `audio`, name or arguments of a tool call). Never: role, empty, usage.
- ttft_ns: the first token-bearing chunk; ttfo_ns: the first with output; reasoning_ns: from the first with
  reasoning to the first with output, null without reasoning or without output.
- gaps: between token-bearing chunks of one choice, listed in the order in which they became known.
  gap_tokens: tokens of the chunk that ended the gap where every chunk carried a running count, else null.
- other APIs: deltas of Responses and Messages, and the name with which a tool call begins; llama.cpp's
  /completion counts so far in every chunk. `response.completed` and `message_stop` end like `[DONE]`. The prompt of
  a message is `input_tokens` and both cache counts.
- usage: of the events that carry usage and no choices; if there are none, of the events with a finish reason.
  More than one of them (llama.cpp, one a choice): output tokens are summed, input tokens by prompt: the
  n choices of one prompt repeat its count. vLLM sends one total. Running counts are no totals. In one piece,
  llama.cpp's usage (told by its `timings`) counts one choice only; for several, the output is not known.
- terminal: `[DONE]`, else `finish_reason`, else null. These end a stream.
- end: how the transport ended. clean: the closing zero-length chunk or the last byte of content-length came.
  cut: end of file before that. reset: RST. client_left: the recording client went away; also where it gave up
  waiting (event "timeout"), since the engine kept the connection open.
- longest_gap_ns, stalls_ns: gaps, and the open gap of each choice from its last token to its finish reason,
  else to `[DONE]`, else to the end. A stall is one longer than one second.
- tpot_s: (last - first token-bearing chunk) / (n - n1), n1 = running count of the first token-bearing chunk,
  1 where unknown; n less the reasoning tokens if no reasoning was seen. Without usage: / (chunks - 1), basis
  chunks. Several choices: only with one usage each, then the intervals added up / (n - choices).
- outcome: see `outcome`.

Checked by hand (bytes and times read off the recording with eyes and a calculator):
- vllm/parsers/chat_stream_usage_continuous: role only at 9.439508 ms, first reasoning "The" at 9.634197 ms,
  last " ." with finish at 61.821388 ms, 16 chunks, running count 1 at the first, 16 in total:
  TPOT = (61.821388 - 9.634197) / (16 - 1) = 3.479146 ms; longest gap 57.658030 -> 61.821388 = 4.163358 ms.
- vllm/flags/x_chat_stream_reasoning: first chunk at 52.909243 ms already has 9 tokens; reasoning and content
  together in the event at 245.365843 ms: reasoning time 192.456600 ms, TPOT = (333.238539 - 52.909243) /
  (79 - 9) = 4.004704 ms where a client that assumes one token in the first chunk says 3.594 ms.
- vllm/plain/completions_stream_echo: 8 chunks, the first (10.740257 ms) holds the prompt and the first token;
  (38.934635 - 10.740257) / 7 = 4.027768 ms.
- llama.cpp/gemma/chat_stream_n2: two events with usage (24 and 24 of 31): 48 tokens of a prompt of 31.
- llama.cpp/gemma/chat_nostream_n2: two answers of 16 tokens (both ended by max_tokens 16), usage says 16.
- llama.cpp/gemma/completions_stream_two_prompts: `data: null` first, usage 12 + 12.
- vllm/midstream/worker_sigkill_stream_started_after: 500 with a JSON body at 16.567325 ms; upstream_error.
- vllm/midstream/server_sigterm_stream: last byte at 798.4 ms, client gave up at 120,882.465 ms: one stall.
- llama.cpp/midstream/server_sigkill_stream: end of file without the closing chunk: cut, truncated.
The times of the head, of the first and last token, the counts, usage, finish reasons and ends of all streamed
recordings also agree with the table that another, older program printed when the recordings were made.
"""

import base64
import json
import re
import sys
from pathlib import Path

STREAMS = Path(__file__).parent / "streams"
SECOND = 1_000_000_000


def read_recording(name):
    """The request, the row of bytes, the time of each byte, and the last line (how it ended)."""
    request = json.loads((STREAMS / f"{name}.request.json").read_text())
    row, times, end = b"", [], None
    for line in (STREAMS / f"{name}.reads.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "b64" in entry:
            data = base64.b64decode(entry["b64"])
            row += data
            times += [entry["t_ns"]] * len(data)
        else:
            end = entry
    return request, row, times, end


def split_head(row):
    """Status, lower-cased header dict, where the body begins."""
    stop = row.index(b"\r\n\r\n")
    lines = row[:stop].decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    headers = {}
    for line in lines[1:]:
        key, value = line.split(":", 1)
        headers[key.strip().lower()] = value.strip()
    return status, headers, stop + 4


def take_body(row, times, start, headers):
    """Body bytes, their times, and the time at which the body was complete (None: it never was)."""
    if "chunked" in headers.get("transfer-encoding", ""):
        return dechunk(row, times, start)
    length = int(headers["content-length"])
    body = row[start : start + length]
    complete = times[start + length - 1] if len(body) == length else None
    return body, times[start : start + length], complete


def dechunk(row, times, at):
    body, body_times = b"", []
    while True:
        line_end = row.find(b"\r\n", at)
        if line_end < 0:
            return body, body_times, None
        size = int(row[at:line_end].split(b";")[0], 16)
        data = line_end + 2
        if size == 0:
            closed = row.find(b"\r\n", data)
            return body, body_times, (times[closed + 1] if closed >= 0 else None)
        body += row[data : data + size]
        body_times += times[data : data + size]
        at = data + size + 2


def split_events(body, body_times):
    """(time, data) of each event with data; comments and other fields are left out."""
    events, at = [], 0
    for blank in re.finditer(rb"\n\n", body):
        text = body[at : blank.start()].decode()
        at = blank.end()
        data = [line[5:].removeprefix(" ") for line in text.split("\n") if line.startswith("data:")]
        if data:
            events.append((body_times[blank.end() - 1], "\n".join(data)))
    return events


def filled(value):
    return isinstance(value, str) and value != ""


def kinds_of(choice):
    """Which generated material a choice of an event carries: a set of reasoning, output, tool_call."""
    delta = choice.get("delta") or {}
    kinds = set()
    if filled(delta.get("reasoning")) or filled(delta.get("reasoning_content")):
        kinds.add("reasoning")
    if filled(choice.get("text")) or filled(delta.get("content")) or filled(delta.get("refusal")):
        kinds.add("output")
    if delta.get("audio"):
        kinds.add("output")
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        if filled(function.get("name")) or filled(function.get("arguments")):
            kinds.add("tool_call")
    return kinds


def parse_stream(events):
    """Every fact of the events in plain lists, in order."""
    seen = {"chunks": [], "finishes": [], "usage_alone": [], "usage_at_finish": []}
    seen |= {"done": None, "error": False}
    for time, data in events:
        if data == "[DONE]":
            seen["done"] = time
            continue
        event = json.loads(data)
        if not isinstance(event, dict):
            continue
        if event.get("error"):
            seen["error"] = True
        usage = event.get("usage")
        choices = event.get("choices") or []
        if usage and not choices:
            seen["usage_alone"].append(usage)
        for choice in choices:
            kinds = kinds_of(choice)
            if kinds:
                running = usage["completion_tokens"] if usage else None
                seen["chunks"].append((time, choice["index"], kinds, running))
            if choice.get("finish_reason"):
                seen["finishes"].append((time, choice["index"], choice["finish_reason"]))
                if usage:
                    seen["usage_at_finish"].append(usage)
    return seen


def chat_usage(prompt, completion, cached=None, reasoning=None):
    """Counts in the shape of chat's `usage`."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


RESPONSES_KINDS = {
    "response.output_text.delta": "output",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "tool_call",
}


def responses_usage(response):
    usage = response.get("usage") or {}
    cached = detail(usage, "input_tokens_details", "cached_tokens")
    reasoning = detail(usage, "output_tokens_details", "reasoning_tokens")
    return chat_usage(usage["input_tokens"], usage["output_tokens"], cached, reasoning) if usage else None


def responses_reason(response):
    reason = (response.get("incomplete_details") or {}).get("reason")
    return {None: "stop", "max_output_tokens": "length"}[reason]


def parse_responses(events):
    seen = {"chunks": [], "finishes": [], "usage_alone": [], "usage_at_finish": []}
    seen |= {"done": None, "error": False}
    for time, data in events:
        event = json.loads(data)
        kind = event["type"]
        assert kind != "response.failed", "no recording has one"
        if kind in RESPONSES_KINDS and event["delta"]:
            seen["chunks"].append((time, 0, {RESPONSES_KINDS[kind]}, None))
        if kind == "response.output_item.added" and event["item"].get("name"):
            seen["chunks"].append((time, 0, {"tool_call"}, None))
        if kind in ("response.completed", "response.incomplete"):
            seen["done"] = time
            seen["finishes"].append((time, 0, responses_reason(event["response"])))
            seen["usage_alone"].append(responses_usage(event["response"]))
        if kind == "error":
            seen["error"] = True
    return seen


def messages_usage(counts):
    cached = counts.get("cache_read_input_tokens")
    prompt = counts["input_tokens"] + (cached or 0) + counts.get("cache_creation_input_tokens", 0)
    return chat_usage(prompt, counts.get("output_tokens"), cached)


def parse_messages(events):
    """The counts of `message_start` (its output count is a placeholder) and `message_delta`, the latest of each."""
    seen = {"chunks": [], "finishes": [], "usage_alone": [], "usage_at_finish": []}
    seen |= {"done": None, "error": False}
    counts = {}
    for time, data in events:
        event = json.loads(data)
        kind = event["type"]
        if kind == "message_start":
            counts |= event["message"]["usage"]
            counts.pop("output_tokens", None)
        if kind == "message_delta":
            counts |= event["usage"]
            if event["delta"].get("stop_reason"):
                seen["finishes"].append((time, 0, event["delta"]["stop_reason"]))
        if kind == "message_stop":
            seen["done"] = time
        if kind == "error":
            seen["error"] = True
        part = event.get("delta") or event.get("content_block") or {}
        kinds = {"text": "output", "thinking": "reasoning", "partial_json": "tool_call", "name": "tool_call"}
        found = {kinds[key] for key in kinds if filled(part.get(key))}
        if found and kind.startswith("content_block_"):
            seen["chunks"].append((time, 0, found, None))
    seen["usage_alone"] = [messages_usage(counts)] if counts else []
    return seen


LLAMA_REASONS = {"eos": "stop", "word": "stop", "limit": "length"}


def llama_usage(event):
    return chat_usage(event["tokens_evaluated"], event["tokens_predicted"], event["timings"]["cache_n"])


def parse_llama_cpp(events):
    """llama.cpp's /completion: each chunk counts so far; `stop` ends a prompt."""
    seen = {"chunks": [], "finishes": [], "usage_alone": [], "usage_at_finish": []}
    seen |= {"done": None, "error": False}
    for time, data in events:
        event = json.loads(data)
        if filled(event["content"]):
            seen["chunks"].append((time, event["index"], {"output"}, event["tokens_predicted"]))
        if event["stop"]:
            seen["finishes"].append((time, event["index"], LLAMA_REASONS[event["stop_type"]]))
            seen["usage_at_finish"].append(llama_usage(event))
    return seen


PARSERS = {"/v1/responses": parse_responses, "/v1/messages": parse_messages, "/completion": parse_llama_cpp}


def detail(usage, group, key):
    return (usage.get(group) or {}).get(key)


def add_up(values):
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def tokens_from(usages, n):
    """Totals; each prompt was counted once for each of its n choices where there is more than one usage."""
    repeats = n if len(usages) > 1 else 1
    cached = [detail(usage, "prompt_tokens_details", "cached_tokens") for usage in usages]
    reasoning = [detail(usage, "completion_tokens_details", "reasoning_tokens") for usage in usages]
    return {
        "input_tokens": share(add_up([usage.get("prompt_tokens") for usage in usages]), repeats),
        "cached_input_tokens": share(add_up(cached), repeats),
        "output_tokens": add_up([usage.get("completion_tokens") for usage in usages]),
        "reasoning_tokens": add_up(reasoning),
    }


def share(value, repeats):
    if value is None:
        return None
    assert value % repeats == 0, "choices of one prompt differ in its count"
    return value // repeats


def work_out_gaps(chunks):
    """(gap, tokens) in order of arrival; tokens where both chunks carried a running count."""
    last, gaps = {}, []
    for time, index, _kinds, running in chunks:
        if index in last:
            before, count = last[index]
            tokens = running - count if running is not None and count is not None else None
            gaps.append((time - before, tokens))
        last[index] = (time, running)
    return gaps


def open_gaps(chunks, finishes, done, end_time):
    """From each choice's last token to its finish reason, else [DONE], else the end."""
    last = {index: time for time, index, _kinds, _running in chunks}
    finished = {index: time for time, index, _reason in finishes}
    stop = done if done is not None else end_time
    return [finished.get(index, stop) - time for index, time in last.items()]


def work_out_tpot(chunks, usages, tokens):
    """(seconds, basis) or (None, None)."""
    first, last = {}, {}
    for time, index, _kinds, _running in chunks:
        first.setdefault(index, time)
        last[index] = time
    interval = sum(last[index] - first[index] for index in first)
    n = tokens["output_tokens"]
    if interval == 0:
        return None, None
    if n is None:
        return (interval / (len(chunks) - 1) / SECOND, "chunks") if len(first) == 1 else (None, None)
    if len(first) > 1:
        return (interval / (n - len(first)) / SECOND, "usage") if len(usages) == len(first) else (None, None)
    if not any("reasoning" in kinds for _t, _i, kinds, _r in chunks):
        n -= tokens["reasoning_tokens"] or 0
    if n < 2:
        return None, None
    first_count = chunks[0][3]
    return interval / (n - (1 if first_count is None else first_count)) / SECOND, "usage"


def outcome(end, status, streamed, terminal, reasons, error, first_token):
    """The closed list, in the order in which the reasons outweigh each other."""
    if status in (429, 503):
        return "overloaded"
    if 400 <= status < 500:
        return "client_error"
    if status >= 500:
        return "upstream_error"
    if error:
        return "error_in_stream"
    if any(reason in ("abort", "error") for reason in reasons):
        return "truncated"
    if end == "client_left" and terminal is None:
        return "client_disconnected_before_output" if first_token is None else "client_disconnected"
    if end == "reset":
        return "upstream_reset"
    if end == "cut":
        return "truncated"
    if streamed and terminal is None:
        return "truncated"
    return "completed"


def transport_end(complete, end):
    if complete is not None:
        return "clean", complete
    how = {"eof": "cut", "reset": "reset", "client_abort": "client_left", "timeout": "client_left"}
    return how[end["event"]], end["t_ns"]


def unary(body, path):
    """Usage and finish reasons of an answer in one piece; nothing if it is not such an answer."""
    answer = json.loads(body)
    if path == "/v1/responses":
        return [responses_usage(answer)], [responses_reason(answer)], 1
    if path == "/v1/messages":
        return [messages_usage(answer["usage"])], [answer["stop_reason"]], 1
    if path == "/completion":
        return [llama_usage(answer)], [LLAMA_REASONS[answer["stop_type"]]], 1
    usage = answer.get("usage")
    if len(answer.get("choices") or []) > 1 and "timings" in answer:
        usage.pop("completion_tokens")
    reasons = [c.get("finish_reason") for c in answer.get("choices") or [] if c.get("finish_reason")]
    return ([usage] if usage else []), reasons, len(answer.get("choices") or [])


def work_out(name):
    request, row, times, end_line = read_recording(name)
    status, headers, start = split_head(row)
    body, body_times, complete = take_body(row, times, start, headers)
    end, end_time = transport_end(complete, end_line)
    streamed = "text/event-stream" in headers.get("content-type", "")
    parse = PARSERS.get(request["path"], parse_stream)
    seen = parse(split_events(body, body_times) if streamed else [])
    chunks, finishes, done = seen["chunks"], seen["finishes"], seen["done"]
    usages = seen["usage_alone"] or seen["usage_at_finish"]
    reasons = [reason for _time, _index, reason in finishes]
    choices = len({c[1] for c in chunks} | {f[1] for f in finishes})
    if not streamed and status < 400:
        usages, reasons, choices = unary(body, request["path"])
    terminal = "[DONE]" if done is not None else "finish_reason" if finishes else None
    asked = request["body"] if isinstance(request["body"], dict) else {}
    tokens = tokens_from(usages, asked.get("n", 1))
    gaps = work_out_gaps(chunks)
    silences = [gap for gap, _ in gaps] + open_gaps(chunks, finishes, done, end_time)
    tpot, basis = work_out_tpot(chunks, usages, tokens)
    reasoning = [time for time, _i, kinds, _r in chunks if "reasoning" in kinds]
    output = [time for time, _i, kinds, _r in chunks if kinds - {"reasoning"}]
    first_token = chunks[0][0] if chunks else None
    return {
        "path": request["path"],
        "status": status,
        "streamed": streamed,
        "header_ns": times[start - 1],
        "first_byte_ns": body_times[0] if body else None,
        "ttft_ns": first_token,
        "ttfo_ns": output[0] if output else None,
        "reasoning_ns": output[0] - reasoning[0] if output and reasoning else None,
        "last_token_ns": chunks[-1][0] if chunks else None,
        "end_ns": end_time,
        "end": end,
        "terminal": terminal,
        "outcome": outcome(end, status, streamed, terminal, reasons, seen["error"], first_token),
        "finish_reasons": reasons,
        "choices": choices,
        "chunks": len(chunks),
        "reads": len({time for time, _i, _k, _r in chunks}),
        "first_chunk_tokens": chunks[0][3] if chunks else None,
        **tokens,
        "tpot_s": tpot,
        "tpot_basis": basis,
        "longest_gap_ns": max(silences) if silences else None,
        "stalls_ns": [gap for gap in silences if gap > SECOND],
        "gaps_ns": [gap for gap, _ in gaps],
        "gap_tokens": [tokens for _, tokens in gaps] if any(t for _, t in gaps) else None,
    }


def names():
    return sorted(str(p.relative_to(STREAMS))[: -len(".reads.jsonl")] for p in STREAMS.rglob("*.reads.jsonl"))


def as_text(results):
    """JSON with one key a line, lists on one line."""
    blocks = []
    for name, values in results.items():
        lines = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
        blocks.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main(arguments):
    if arguments:
        print(as_text({name: work_out(name) for name in arguments}), end="")
    else:
        (STREAMS / "expected.json").write_text(as_text({name: work_out(name) for name in names()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
