"""What a host shows beside the victim: shared memory, the port, GPU memory, its fingerprint.

Never: judges, or fails the run: what a host does not have is null with the reason.
Plan: one shell command an inspection, its parts told apart by marks of our own.
"""

from __future__ import annotations

import http.client
import json
from typing import Any

from percentes_fast.faults.host import Host, HostError

MARK = "#percentes-fast "
SMI = "if command -v nvidia-smi >/dev/null 2>&1; then nvidia-smi"
ELSE = "|| echo failed; else echo absent; fi"
LOOK = f"""
echo '{MARK}shm'; ls -A /dev/shm 2>/dev/null
echo '{MARK}tcp'; cat /proc/net/tcp /proc/net/tcp6 2>/dev/null
echo '{MARK}gpu'; {SMI} --query-compute-apps=pid,used_memory --format=csv,noheader {ELSE}
"""
GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "clocks.max.graphics",
    "clocks.max.memory",
    "clocks.applications.graphics",
    "clocks.applications.memory",
    "power.limit",
    "persistence_mode",
)
FINGERPRINT = f"""
echo '{MARK}kernel'; uname -srm
echo '{MARK}cpus'; grep -c ^processor /proc/cpuinfo
echo '{MARK}gpu'; {SMI} --query-gpu={",".join(GPU_FIELDS)} --format=csv,noheader {ELSE}
"""
LISTEN = "0A"
VERSION_TIMEOUT_S, VERSION_BYTES = 2.0, 4096


def _parts(text: str) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith(MARK):
            current = parts.setdefault(line.removeprefix(MARK).strip(), [])
        elif line.strip():
            current.append(line.strip())
    return parts


def listens(table: list[str], port: int) -> bool:
    """Does a line of /proc/net/tcp or tcp6 show a socket that listens on the port?"""
    for line in table:
        fields = line.split()
        if (
            len(fields) > 3
            and fields[3] == LISTEN
            and int(fields[1].rpartition(":")[2], 16) == port
        ):
            return True
    return False


def _is_gpu(lines: list[str]) -> bool:
    return "absent" not in lines and "failed" not in lines


def look(host: Host, port: int) -> dict[str, Any]:
    """/dev/shm, the port and GPU memory of a host now.

    gpu_memory: [pid, what nvidia-smi prints] a process, null where there is no nvidia-smi.
    """
    try:
        parts = _parts(host.run(LOOK, again=True).out)
    except HostError as exc:
        return {"port": port, "listens": None, "shm": None, "gpu_memory": None, "reason": str(exc)}
    gpu = parts.get("gpu", ["absent"])
    return {
        "port": port,
        "listens": listens(parts.get("tcp", []), port),
        "shm": sorted(parts.get("shm", [])),
        "gpu_memory": None
        if not _is_gpu(gpu)
        else [[part.strip() for part in line.split(",")] for line in gpu],
    }


def server_version(ip: str, port: int) -> str | None:
    """What the server answers to GET /version (vLLM does); None where it does not."""
    asked = http.client.HTTPConnection(ip, port, timeout=VERSION_TIMEOUT_S)
    try:
        asked.request("GET", "/version")
        answer = asked.getresponse()
        told = json.loads(answer.read(VERSION_BYTES)) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        asked.close()
    version = told.get("version") if isinstance(told, dict) else None
    return version if isinstance(version, str) else None


def fingerprint(host: Host) -> dict[str, Any]:
    """Kernel, CPUs and GPUs (null: no nvidia-smi) of a host."""
    parts = _parts(host.run(FINGERPRINT, again=True).out)
    gpu = parts.get("gpu", ["absent"])
    rows = [dict(zip(GPU_FIELDS, map(str.strip, line.split(",")), strict=False)) for line in gpu]
    return {
        "kernel": next(iter(parts.get("kernel", [])), None),
        "cpus": next(iter(parts.get("cpus", [])), None),
        "gpus": rows if _is_gpu(gpu) else None,
        "gpu_error": "failed" in gpu,
    }
