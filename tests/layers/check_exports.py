#!/usr/bin/env python3
"""A shared libvarve shows varve_* and nothing else, and shows all that varve.h declares.

usage: check_exports.py NM LIBRARY HEADER
"""

import re
import subprocess
import sys


def main():
    nm, library, header = sys.argv[1:]
    listing = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    with open(header, encoding="utf-8") as file:
        declared = set(re.findall(r"VARVE_API\s[^;(]*?\b(varve_\w+)\s*\(", file.read()))
    foreign = sorted(name for name in exported if not name.startswith("varve_"))
    missing = sorted(declared - exported)
    for name in foreign:
        print(f"exported, but not of the C API: {name}")
    for name in missing:
        print(f"declared in varve.h, but not exported: {name}")
    print(f"exports: {len(exported)} symbols, {len(declared)} declared")
    sys.exit(bool(foreign or missing or not declared))


if __name__ == "__main__":
    main()
