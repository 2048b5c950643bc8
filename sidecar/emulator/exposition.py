"""vLLM 0.32's /metrics page, from planned instants: what is recorded, when, and by which clock.

Live: step tokens, generated tokens and inter-token latency at each step; TTFT and prompt tokens at a
sequence's first token; cache counters when it is admitted. At the end: end-to-end, queue, prefill, decode,
inference, lengths, finish reason. A sequence whose client left is in the live families only (vLLM issue
31503); one that broke is counted by its reason and nothing else. TTFT and end-to-end are differences of
the wall clock, all else is monotonic.
"""

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sidecar.emulator import families
from sidecar.emulator.clock import WallClock
from sidecar.emulator.engine import Ended, Run
from sidecar.emulator.scheduler import Limits, Scheduler, Step
from sidecar.emulator.sequence import Phases, Sequence

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
LABELS = ("engine", "model_name")
# vLLM counts what the engine saw; "tool_calls" is the API server's word for a stop.
REASON_OF = {"tool_calls": "stop"}


Rows = dict[tuple[str, ...], float]
"""Label values -> value of the sample."""


class Histogram:
    """Counts between the bounds, and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """A value on a bound belongs to the bucket below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, by upper bound."""
        so_far, result = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            so_far += count
            result.append((_le(bound), float(so_far)))
        return result


class Exposition(Collector):
    """The engine's numbers. `max_model_len` bounds the buckets of lengths."""

    def __init__(
        self, model: str, limits: Limits, max_model_len: int, clock: WallClock, scheduler: Scheduler
    ) -> None:
        self._model, self._limits, self._clock, self._scheduler = model, limits, clock, scheduler
        self._created = clock.at(clock.origin)
        self._counters = dict.fromkeys(families.COUNTERS, 0)
        self._labelled = {
            name: dict.fromkeys(values, 0) for name, (_, _, values) in families.LABELLED_COUNTERS.items()
        }
        self._rejections = dict.fromkeys(families.REJECTIONS[2], 0)
        lengths = families.lengths(max_model_len)
        self._histograms = {
            name: Histogram(bounds or lengths) for name, (_, bounds) in families.HISTOGRAMS.items()
        }

    def stepped(self, step: Step) -> None:
        """A step ended."""
        counters = self._counters
        counters["prefix_cache_queries"] += step.queried
        counters["prefix_cache_hits"] += step.hit
        counters["num_preemptions"] += step.preempted
        counters["generation_tokens"] += len(step.tokens)
        gaps, prompts = self._histograms["inter_token_latency_seconds"], 0
        for token in step.tokens:
            if token.gap is not None:
                gaps.observe(token.gap)
            else:
                prompts += token.sequence.work.prompt_tokens
                self._prefilled(token.sequence, step.ended)
        self._histograms["iteration_tokens_total"].observe(prompts + len(step.tokens))

    def ended(self, ended: Ended) -> None:
        """A sequence ended."""
        reason = REASON_OF.get(ended.finish_reason, ended.finish_reason)
        if reason == "abort":
            return
        self._labelled["request_success"][reason] += 1
        if (phases := ended.sequence.phases) is not None:
            for name, value in self._at_end(ended, phases).items():
                self._histograms[name].observe(value)
            if not ended.run.open:
                self._answered(ended.run)

    def rejected(self) -> None:
        """The queue was full."""
        self._rejections["max_num_queued_reqs"] += 1

    def render(self) -> bytes:
        """The page."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """All families, with the queue as it is now."""
        of = ("0", self._model)
        yield from self._gauges(of)
        for name, value in self._counters.items():
            yield self._counter(name, families.COUNTERS[name], LABELS, {of: value})
        for name, values in self._labelled.items():
            help_, label, _ = families.LABELLED_COUNTERS[name]
            rows: Rows = {(*of, labelled): count for labelled, count in values.items()}
            yield self._counter(name, help_, (*LABELS, label), rows)
        rejections: Rows = {(self._model, reason): count for reason, count in self._rejections.items()}
        yield self._counter(*families.REJECTIONS[:2], ("model_name", "reason"), rejections)
        for name, histogram in self._histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", families.HISTOGRAMS[name][0], labels=LABELS)
            family.add_metric(of, histogram.buckets(), histogram.sum)
            family.add_sample(f"vllm:{name}_created", dict(zip(LABELS, of, strict=True)), self._created)
            yield family

    def _gauges(self, of: tuple[str, str]) -> Iterator[Metric]:
        scheduler = self._scheduler
        waiting = len(scheduler.waiting)
        values = (len(scheduler.running), waiting, scheduler.cache.used / self._limits.kv_blocks)
        for (name, help_), value in zip(families.GAUGES.items(), values, strict=True):
            yield _gauge(f"vllm:{name}", help_, LABELS, {of: value})
        by_reason: Rows = {(*of, "capacity"): waiting, (*of, "deferred"): 0}
        name, help_ = families.WAITING_BY_REASON
        yield _gauge(f"vllm:{name}", help_, (*LABELS, "reason"), by_reason)
        config = {
            "block_size": str(self._limits.block_size),
            "enable_prefix_caching": str(self._limits.prefix_caching),
            "engine": "0",
            "num_gpu_blocks": str(self._limits.kv_blocks),
        }
        name, help_ = families.CACHE_CONFIG
        yield _gauge(f"vllm:{name}", help_, tuple(config), {tuple(config.values()): 1})
        help_ = "Start time of the process since unix epoch in seconds."
        yield _gauge("process_start_time_seconds", help_, (), {(): self._created})

    def _counter(self, name: str, help_: str, labels: tuple[str, ...], rows: Rows) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", help_, labels=labels)
        for values, value in rows.items():
            family.add_metric(values, value, created=self._created)
        return family

    def _prefilled(self, sequence: Sequence, at: float) -> None:
        prompt, cached = sequence.work.prompt_tokens, sequence.cached_tokens
        self._counters["prompt_tokens"] += prompt
        self._counters["prompt_tokens_cached"] += cached
        self._labelled["prompt_tokens_by_source"]["local_compute"] += prompt - cached
        self._labelled["prompt_tokens_by_source"]["local_cache_hit"] += cached
        self._labelled["prompt_tokens_cached_by_source"]["device"] += cached
        ttft = self._clock.at(at) - self._clock.at(sequence.arrived)
        self._histograms["time_to_first_token_seconds"].observe(ttft)

    def _at_end(self, ended: Ended, phases: Phases) -> dict[str, float]:
        sequence, (_, last, queue, prefill, decode) = ended.sequence, phases
        gaps = sequence.tokens - 1
        return {
            "e2e_request_latency_seconds": self._clock.at(last) - self._clock.at(sequence.arrived),
            "request_queue_time_seconds": queue,
            "request_prefill_time_seconds": prefill,
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": prefill + decode,
            "request_time_per_output_token_seconds": decode / gaps if gaps else 0.0,
            "request_prompt_tokens": sequence.work.prompt_tokens,
            "request_generation_tokens": sequence.tokens,
            "request_params_max_tokens": ended.run.asked.max_tokens,
            "request_prefill_kv_computed_tokens": sequence.work.prompt_tokens - sequence.cached_tokens,
            "request_num_preemptions": sequence.preemptions,
        }

    def _answered(self, run: Run) -> None:
        """Once a request, however many sequences it has."""
        most = max(sequence.tokens for sequence in run.sequences)
        self._histograms["request_max_num_generation_tokens"].observe(most)
        self._histograms["request_params_n"].observe(run.asked.n)


def _gauge(name: str, help_: str, labels: tuple[str, ...], rows: Rows) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=labels)
    for values, value in rows.items():
        family.add_metric(values, value)
    return family


def _le(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))
