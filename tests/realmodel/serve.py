"""Serves the model file `argv[1]` by llama.cpp on a free port, with so many tokens of context. Prints the base URL.

Runs in the environment of `requirements.txt`, which has nothing of ours: `python -m` does not work there.
"""

import sys
import threading
from pathlib import Path

import xllamacpp


def main() -> None:
    path, context = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = int(context)
    params.n_parallel = 1
    params.n_batch = 512
    params.port = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # two wait for each other on a busy machine
    params.sampling.temp = 0.0
    params.sampling.seed = 1
    params.use_jinja = True
    params.chat_template = Path(__file__).with_name("template.jinja").read_text()  # the model's own knows no tools
    params.warmup = False
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
