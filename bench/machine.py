"""What a figure was measured on: CPU, caches, memory, compiler, versions, and how busy the machine was."""

import os
import pathlib
import platform
import re
import subprocess


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return (done.stdout + done.stderr).strip().splitlines()[0]


def cache_sizes():
    sizes = {}
    for index in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (index / "type").read_text().strip() != "Instruction":
            sizes["L" + (index / "level").read_text().strip()] = (index / "size").read_text().strip()
    return dict(sorted(sizes.items()))


def describe(tree):
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*:\s*(.*)$", cpuinfo, re.M).group(1).split())
    shown = ["avx2", "fma", "avx512f", "avx512vbmi", "avx512_vnni", "avx512_bf16", "amx_tile"]
    return {
        "cpu": re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.M).group(1),
        "cpu_family_model_stepping": "/".join(
            re.search(rf"^{field}\s*:\s*(\d+)$", cpuinfo, re.M).group(1) for field in ("cpu family", "model", "stepping")
        ),
        "virtual": "hypervisor" in flags,
        "cpus": os.cpu_count(),
        "instruction_sets": [flag for flag in shown if flag in flags],
        "caches": cache_sizes(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "compiler": first_line("c++", "--version"),
        "varve_commit": first_line("git", "-C", str(tree), "describe", "--always", "--dirty"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
