"""The printed pages are what the code says, and say everything."""

import re
from pathlib import Path

import pytest
import yaml

from sidecar.catalogue import FAMILIES, LABELS
from sidecar.cli import main
from sidecar.commands.reference import PAGES
from sidecar.config import load

DOCS = Path(__file__).parent.parent / "docs"


def test_the_committed_pages_are_up_to_date() -> None:
    assert main(["reference", "--check", "--directory", str(DOCS)]) == 0


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_every_family_has_its_row_with_type_labels_and_meaning(family: object) -> None:
    name, kind, labels, text = family[:4]  # type: ignore[index] -- a tuple
    row = next(line for line in PAGES["metrics.md"]().splitlines() if line.startswith(f"| `{name}` | {kind}"))
    assert all(f"`{label}`" in row for label in labels)
    assert text in row


def test_every_closed_label_lists_its_values() -> None:
    page = PAGES["metrics.md"]()
    for label, values in LABELS.items():
        if values:
            assert f"| `{label}` | {', '.join(f'`{value}`' for value in values)} |" in page


def test_every_setting_has_its_row_with_the_default() -> None:
    page = PAGES["configuration.md"]().split("## Top level")[1].splitlines()
    default = load(None, {"upstream": "http://a:1"}, {}).shown()
    for name, value in default.items():
        for path, given in _leaves(name, value):
            row = next(line for line in page if line.startswith(f"| `{path}` | "))
            cells = [cell.strip() for cell in row.strip("|").split(" | ")]
            shown = str(given).lower() if isinstance(given, bool) else str(given)
            absent = {"upstream": "required"}.get(name, "none" if given in (None, "") else None)
            assert cells[-2] == (absent or f"`{shown}`")
            assert len(cells[-1]) > 10, f"{path} says nothing"


def _leaves(name: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"{name}.{key}", inner) for key, inner in value.items()]
    return [(name, value)]


def test_the_example_in_the_page_loads(tmp_path: Path) -> None:
    example = PAGES["configuration.md"]().split("```yaml\n")[1].split("```")[0]
    (tmp_path / "example.yaml").write_text(example)
    assert (
        load(str(tmp_path / "example.yaml"), environment={}).upstream == yaml.safe_load(example)["upstream"]
    )


def test_write_makes_the_pages_and_check_sees_a_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--directory", str(tmp_path)]
    assert main(["reference", "--check", *at]) == 1
    assert main(["reference", "--write", *at]) == 0
    assert main(["reference", "--check", *at]) == 0
    capsys.readouterr()
    (tmp_path / "metrics.md").write_text("# Metrics\n")
    assert main(["reference", "--check", *at]) == 1
    assert capsys.readouterr().err == (
        f"{tmp_path / 'metrics.md'}: not what the code says; run `sidecar reference --write`\n"
    )


NAME = re.compile(r"\bllm_[a-z0-9_]+")
WRITTEN = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_metric_that_a_page_names_exists(page: Path) -> None:
    known = {family.name for family in FAMILIES}
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    prefixes = ("llm_engine_", "llm_slo_", "llm_request_", "llm_phase_", "llm_join_", "llm_sidecar_", "llm_")
    named = {name for name in NAME.findall(page.read_text()) if name not in prefixes}
    assert not named - known - {"llm_request"}, "vLLM's span is called llm_request"
