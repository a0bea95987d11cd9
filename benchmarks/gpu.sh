#!/usr/bin/env bash
# What a GPU does with a pre-training step, beside transformers: one command, under ten minutes on an H200, no network.
#
#     bash benchmarks/gpu.sh [flags of benchmarks/gpu_step.py]
#
# Before, where there is a network, in one environment:
#
#     pip install -e . 'jax[cuda13]' transformers
#     pip install torch --index-url https://download.pytorch.org/whl/cu130
#
# Both bring CUDA libraries of their own; those of CUDA 13 get along. Without torch or transformers the peer's column is
# empty. Real text for the packed row: --corpus='texts/*.txt' --tokenizer=vocab.txt. With OUT=folder the figures are
# written to folder/gpu.json, too, after every row. Compiled programs are kept (~/.cache/bertjax/compiled, or
# JAX_COMPILATION_CACHE_DIR), so that a second run measures sooner.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# Two frameworks in one memory: JAX takes what it needs, at most 45 %, and PyTorch the rest.
export XLA_PYTHON_CLIENT_PREALLOCATE="${XLA_PYTHON_CLIENT_PREALLOCATE:-false}"
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.45}"
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
exec timeout 590 python benchmarks/gpu_step.py "$@"
