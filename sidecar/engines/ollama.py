"""Ollama has no metrics page in any release up to 0.33 (issue 3144): what is known comes with its answers."""

from sidecar.engines.table import Engine

OLLAMA = Engine(
    name="ollama",
    title="Ollama",
    path="",
    enable="it has no metrics page",
    marks=(),
    signals=(),
    version=("/api/version", "version"),
)
