#!/usr/bin/env bash
# Times pre-training steps on a GPU, compared with transformers. Takes under ten minutes on an H200; needs no network.
#
#     bash benchmarks/gpu.sh [flags of benchmarks/gpu_step.py]
#
# To prepare the environment, on a machine with a network:
#
#     pip install -e . 'jax[cuda13]' transformers
#     pip install torch --index-url https://download.pytorch.org/whl/cu130
#
# JAX and PyTorch each install CUDA libraries. For CUDA 13, these are compatible. Without torch or transformers, the
# column of the peer is empty. --corpus='texts/*.txt' --tokenizer=vocab.txt uses real text for the packed row. With
# OUT=FOLDER, the script also writes the figures to FOLDER/gpu.json after every row. Compiled programs are cached
# (~/.cache/bertjax/compiled, or JAX_COMPILATION_CACHE_DIR), so a second run starts faster.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
# JAX and PyTorch share the GPU memory: JAX allocates on demand, at most 45 %, and PyTorch uses the rest.
export XLA_PYTHON_CLIENT_PREALLOCATE="${XLA_PYTHON_CLIENT_PREALLOCATE:-false}"
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.45}"
command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
exec timeout 590 python benchmarks/gpu_step.py "$@"
