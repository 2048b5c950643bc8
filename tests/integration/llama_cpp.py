"""Run llama.cpp's own HTTP server (its C++ code, from the xllamacpp wheel) on a free loopback port.

    python llama_cpp.py MODEL.gguf

Prints the port when it listens; SIGTERM ends it. A process of its own, so that it can't disturb the
loop under test.
"""

import signal
import sys

import xllamacpp


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.model_alias = {"tiny-chat"} if not isinstance(params.model_alias, str) else "tiny-chat"
    params.hostnames = ["127.0.0.1"] if not isinstance(params.hostnames, str) else "127.0.0.1"
    params.port = 0
    params.n_parallel = 4
    params.n_ctx = 8192
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.use_jinja = True
    params.default_template_kwargs = {"enable_thinking": "true"}
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
main()
