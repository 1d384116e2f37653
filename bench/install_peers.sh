#!/usr/bin/env bash
# Installs the peers of bench/bench_peers.py that are Python packages, aiperf and guidellm, each into
# a virtual environment of its own under ${PEERS_DIR:-.peers}. Needs Python 3.10 or later, about 2 GB
# of disk and the package index that pip is configured for. A complete earlier install is checked
# and reused; anything else is built again.
#
# It must never touch anything outside ${PEERS_DIR:-.peers}, never install into an environment that
# is already active, and never leave a half-made install that looks complete: the stamp is written
# last. Every failure is one line on stderr that starts with "install_peers:"; the other peer is still
# installed, and the exit status is 1.
#
# Usage: bench/install_peers.sh [aiperf] [guidellm]
# Environment: PEERS_DIR, PYTHON (default python3), PEERS_TORCH (default: a CPU-only build)
set -euo pipefail

readonly AIPERF=aiperf==0.13.0
readonly GUIDELLM=guidellm==0.8.1
# guidellm asks for any torch; the default build would bring gigabytes for graphics cards
readonly TORCH=${PEERS_TORCH:-torch==2.13.0+cpu}

die() {
  printf 'install_peers: %s\n' "$*" >&2
  exit 1
}

python=${PYTHON:-python3}
mkdir -p "${PEERS_DIR:-.peers}" 2>/dev/null || die "cannot create the directory ${PEERS_DIR:-.peers}"
peers=$(cd "${PEERS_DIR:-.peers}" && pwd)
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
  die "cannot run '$python' as Python 3.10 or later (set PYTHON to its path)"

# One step with its output in the log; a failure is one line with the last error of the log.
step() {
  local log=$1 what=$2
  shift 2
  printf 'install_peers: %s\n' "$what"
  printf '\n== %s\n' "$what" >>"$log"
  if ! "$@" >>"$log" 2>&1; then
    local why
    why=$(awk '/^== /{last=""} tolower($0) ~ /error/{last=$0} END{print last}' "$log")
    die "FAILED: $what: ${why:-no error line} (whole output in $log)"
  fi
}

# The command answers from inside the environment: catches moved trees and missing libraries.
works() {
  local name=$1
  head -n 3 "$peers/$name/bin/$name" 2>/dev/null | grep -qF "$peers/$name/bin/python" &&
    timeout 120 "$peers/$name/bin/$name" --help >/dev/null 2>&1
}

# set_up NAME REQUIREMENT...
set_up() {
  local name=$1 venv=$peers/$1 log=$peers/$1.log
  shift
  if [[ -f $venv/install-complete && $(<"$venv/install-complete") == "$*" ]] && works "$name"; then
    echo "install_peers: reusing the complete install in $venv"
    return
  fi
  if [[ -e $venv && ! -f $venv/pyvenv.cfg ]]; then
    die "$venv exists and is not a virtual environment: move it away"
  fi
  : >"$log"
  step "$log" "making a virtual environment for $name" "$python" -m venv --clear "$venv"
  step "$log" "installing $*" "$venv/bin/python" -m pip install "$@"
  step "$log" "checking that $name answers" works "$name"
  printf '%s\n' "$*" >"$venv/install-complete"
  echo "install_peers: complete in $venv"
}

(($# > 0)) || set -- aiperf guidellm
status=0
for name in "$@"; do
  case $name in
  aiperf) wanted=("$AIPERF") ;;
  guidellm) wanted=("$TORCH" "$GUIDELLM") ;;
  *) die "no such peer: $name (aiperf, guidellm)" ;;
  esac
  # a subshell, so that one peer's failure leaves the other its turn; `set -e` is off inside it, but
  # every step ends the subshell itself
  (set_up "$name" "${wanted[@]}") || status=1
done
exit "$status"
