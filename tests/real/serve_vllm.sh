#!/usr/bin/env bash
# Becomes a vLLM server on 127.0.0.1:PORT with the toy model, from what install_vllm.sh and
# toy_model.py left in ${REAL_DIR:-.real}. It execs: the pid of the caller's child is the server's
# own process, so a signal to it hits the server and not a shell.
#
# It must never put the server in the background, never listen beyond 127.0.0.1 and never let it
# reach for a model or report usage over the network.
#
# Usage: tests/real/serve_vllm.sh PORT [more arguments of "vllm serve"]     environment: REAL_DIR
# One core for the server, one for the load:  taskset -c 0 tests/real/serve_vllm.sh PORT
#
# With "seed" in the requests pass --no-enable-chunked-prefill too: when more than 2048 prompt
# tokens come at once (a burst, a backlog after a stop) this version splits a prompt, asks the CPU
# generator of that seed for an offset, which it has not, and the whole engine dies.
set -euo pipefail

die() {
  printf 'serve_vllm: %s\n' "$*" >&2
  exit 2
}

[[ $# -ge 1 && $1 =~ ^[1-9][0-9]{0,4}$ && $1 -le 65535 ]] || die "usage: serve_vllm.sh PORT [ARGS]"
port=$1
shift

real=$(cd "${REAL_DIR:-.real}" 2>/dev/null && pwd) ||
  die "no directory ${REAL_DIR:-.real}: run install_vllm.sh first"
[[ -f $real/venv/install-complete ]] || die "no complete install in $real/venv: run install_vllm.sh"
[[ -f $real/model/config.json ]] ||
  die "no model in $real/model: run $real/venv/bin/python toy_model.py"

export VLLM_CPU_KVCACHE_SPACE=1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1

exec "$real/venv/bin/vllm" serve "$real/model" --served-model-name tiny \
  --host 127.0.0.1 --port "$port" --max-model-len 1024 --max-num-seqs 16 \
  --dtype bfloat16 --enforce-eager "$@"
