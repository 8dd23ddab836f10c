#!/usr/bin/env python3
"""A shared libvarve shows varve_* and nothing else, and shows all that varve.h declares; the plugin shows what ggml looks up alone.

usage: check_exports.py NM LIBRARY HEADER
       check_exports.py NM PLUGIN SYMBOL...
"""

import re
import subprocess
import sys


def main():
    nm, library, header, *more = sys.argv[1:]
    listing = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    if header.endswith(".h"):
        with open(header, encoding="utf-8") as file:
            declared = set(re.findall(r"VARVE_API\s[^;(]*?\b(varve_\w+)\s*\(", file.read()))
        foreign = sorted(name for name in exported if not name.startswith("varve_"))
    else:
        declared = {header, *more}
        foreign = sorted(exported - declared)
    missing = sorted(declared - exported)
    for name in foreign:
        print(f"exported, but not declared: {name}")
    for name in missing:
        print(f"declared, but not exported: {name}")
    print(f"exports: {len(exported)} symbols, {len(declared)} declared")
    sys.exit(bool(foreign or missing or not declared))


if __name__ == "__main__":
    main()
