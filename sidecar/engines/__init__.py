"""What engines call things: one table an engine, and the one function that reads a page by a table.

To add an engine: a file with its table, a line below, a recorded page in tests/data/expositions.
"""

from collections.abc import Iterable

from sidecar.engines.dynamo import DYNAMO
from sidecar.engines.llama_cpp import LLAMA_CPP
from sidecar.engines.lmdeploy import LMDEPLOY
from sidecar.engines.nim import NIM
from sidecar.engines.ollama import OLLAMA
from sidecar.engines.sglang import SGLANG
from sidecar.engines.table import Engine
from sidecar.engines.tensorrt_llm import TENSORRT_LLM
from sidecar.engines.tgi import TGI
from sidecar.engines.triton import TRITON
from sidecar.engines.vllm import VLLM

# In the order in which a page is tried: those first that may show another engine's names beside their own.
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (TRITON, DYNAMO, VLLM, SGLANG, LLAMA_CPP, LMDEPLOY, TGI, NIM, TENSORRT_LLM, OLLAMA)
}


def detect(names: Iterable[str], kind: str = "auto") -> Engine | None:
    """The engine whose page has these metrics, `kind` if it may be that one; None when no table knows it.

    A page may be of another engine than the one that was set: NIM passes on what runs inside it.
    """
    found = list(names)
    for engine in sorted(ENGINES.values(), key=lambda engine: engine.name != kind):
        if any(name.startswith(engine.marks) for name in found):
            return engine
    return None
