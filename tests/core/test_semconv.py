"""The names are those of OpenTelemetry's own package."""

import warnings

import pytest
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas

from sidecar import catalogue
from sidecar.core import semconv

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # every GenAI name has moved to a repository of its own
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

KNOWN = {
    value
    for module in (gen_ai_attributes, error_attributes, http_attributes, server_attributes)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}


@pytest.mark.parametrize("name", semconv.STANDARD)
def test_a_standard_name_is_in_the_package(name: str) -> None:
    assert name in KNOWN


def test_the_name_that_an_older_version_has_is_in_the_package_too() -> None:
    renamed = semconv.spelled({semconv.PROVIDER_NAME: "vllm"}, "1.36")
    assert renamed == {gen_ai_attributes.GEN_AI_SYSTEM: "vllm"}


def test_every_operation_is_one_of_the_conventions() -> None:
    allowed = {value.value for value in gen_ai_attributes.GenAiOperationNameValues}
    assert set(semconv.OPERATIONS.values()) <= allowed
    assert set(semconv.OPERATIONS) == set(catalogue.OPERATIONS) - {"other"}


def test_the_schemas_exist() -> None:
    assert set(semconv.SCHEMA_URLS.values()) <= {schema.value for schema in Schemas}


SPELLINGS = [
    (
        "latest changes nothing",
        "latest",
        {"gen_ai.request.stream": True, "x": 1},
        {"gen_ai.request.stream": True, "x": 1},
    ),
    ("1.36 has no such attribute", "1.36", {"gen_ai.request.stream": True, "x": 1}, {"x": 1}),
    (
        "1.36 counts tokens under the same name",
        "1.36",
        {"gen_ai.usage.input_tokens": 3},
        {"gen_ai.usage.input_tokens": 3},
    ),
]


@pytest.mark.parametrize(
    ("version", "given", "expected"), [r[1:] for r in SPELLINGS], ids=[r[0] for r in SPELLINGS]
)
def test_spelled(version: semconv.Version, given: dict[str, object], expected: dict[str, object]) -> None:
    assert semconv.spelled(given, version) == expected
