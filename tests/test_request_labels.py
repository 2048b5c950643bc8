"""Labels from request headers: allowed or capped values, on counters only, refused when senseless."""

from pathlib import Path
from typing import Any

import pytest

from sidecar.catalogue import OTHER
from sidecar.config import Config, ConfigError, MetricsConfig, RequestLabel, load
from sidecar.core.record import RequestRecord
from sidecar.metrics import Metrics
from sidecar.request_labels import RequestLabels


def tenant(**rule: Any) -> RequestLabels:
    return RequestLabels({"tenant": RequestLabel(header="X-Tenant", **rule)})


VALUES: dict[str, tuple[dict[str, Any], list[bytes | None], list[str]]] = {
    "the first few values, then other": ({"max": 2}, [b"a", b"b", b"c", b"a"], ["a", "b", OTHER, "a"]),
    "only what is allowed": ({"allow": ("a",)}, [b"a", b"b"], ["a", OTHER]),
    "no header, or an empty one": ({}, [None, b"", b"  "], ["", "", ""]),
    "too long, or not to be printed": ({}, [b"x" * 65, b"a\x01b"], [OTHER, OTHER]),
    "blanks around it are none of it": ({}, [b" a "], ["a"]),
    "what is not UTF-8": ({}, [b"\xff"], ["\ufffd"]),
}


@pytest.mark.parametrize(("rule", "sent", "labels"), VALUES.values(), ids=VALUES)
def test_what_becomes_a_label(rule: dict[str, Any], sent: list[bytes | None], labels: list[str]) -> None:
    one = tenant(**rule)
    headers = [[] if value is None else [(b"x-TENANT", value), (b"x-tenant", b"second")] for value in sent]
    assert [one.values(each) for each in headers] == [(label,) for label in labels]


def test_values_past_the_cap_are_counted() -> None:
    one = tenant(max=1)
    for value in (b"a", b"b", b"c"):
        one.values([(b"x-tenant", value)])
    assert one.overflowed == {"tenant": 2}


def finished(metrics: Metrics, label: str) -> None:
    record = RequestRecord(
        id="r", trace_id="t", method="POST", operation="chat", model="m", streaming=True, status=200,
        outcome="completed", wall=0.0, t0=0.0, f1=1.0, ended=2.0, input_tokens=5, output_tokens=7,
    )  # fmt: skip
    metrics.record(record, None, (label,))


def test_counters_have_the_label_and_histograms_do_not() -> None:
    metrics = Metrics(MetricsConfig(), tenant())
    metrics.learn_models(["m"])
    finished(metrics, "a")
    finished(metrics, "")
    page = b"".join(metrics.render_slices(False)).decode()
    assert 'outcome="completed",tenant="a"} 1' in page
    assert 'llm_output_tokens_total{model="m",operation="chat",tenant="a"} 7' in page
    assert 'llm_output_tokens_total{model="m",operation="chat",tenant=""} 7' in page
    assert 'llm_time_to_first_token_seconds_count{model="m",operation="chat"} 2' in page


def test_without_room_a_label_is_other_too() -> None:
    metrics = Metrics(MetricsConfig(max_series=5000), tenant(max=1000))
    metrics.learn_models(["m"])
    for number in range(8000):
        finished(metrics, f"t{number}")
    page = b"".join(metrics.render_slices(False)).decode()
    assert len([line for line in page.splitlines() if not line.startswith("#")]) <= 5000
    assert f'tenant="{OTHER}"' in page


WRONG = {
    "labels: {tenant: {}}": "labels.tenant.header: is required",
    "labels: {le: {header: x}}": "labels.le",
    "labels: {model: {header: x}}": "labels.model",
    "labels: {a-b: {header: x}}": "labels.a-b",
    "labels: {tenant: {header: 'a b'}}": "labels.tenant.header: not a header name",
    "labels: {tenant: {header: x, alow: [a]}}": "labels.tenant.alow: unknown key; did you mean allow?",
    "labels: {tenant: {header: x, max: 0}}": "labels.tenant.max: must be at least 1",
    "labels: tenant": "labels: must be a mapping",
}


@pytest.mark.parametrize(("text", "said"), WRONG.items())
def test_a_wrong_declaration_is_named_with_its_path(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text(f"upstream: http://h:1\n{text}\n")
    with pytest.raises(ConfigError) as wrong:
        load(str(file), environment={})
    assert any(error.startswith(said) for error in wrong.value.errors), wrong.value.errors


def test_a_declaration_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text("upstream: http://h:1\nlabels: {tenant: {header: x-tenant, allow: [a, b], max: 9}}\n")
    config: Config = load(str(file), environment={})
    assert config.labels == {"tenant": RequestLabel(header="x-tenant", allow=("a", "b"), max=9)}
