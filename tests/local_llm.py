"""A llama.cpp server for one GGUF file: prints its address and serves until its standard input is closed."""

import sys

import xllamacpp


def serve(model: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_parallel, params.n_ctx = 2, 2 * 4096
    # One thread: llama.cpp's threads spin for each other, which crawls where something else wants the cores.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_prompt = False  # a prompt is computed the same way each time it comes
    params.endpoint_metrics = True
    params.offline, params.ui = True, False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1])
