#!/usr/bin/env python3
"""Fails when an object compiled for one instruction set holds a weak symbol.

A weak symbol is an inline or template function, and the linker keeps one copy for the whole program: it could be the
copy made of instructions that this CPU does not have.

usage: check_isa_symbols.py NM OBJECT...
"""

import subprocess
import sys


def weak_symbols(nm_output):
    found = []
    for line in nm_output.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[-2] in {"W", "V", "w", "v", "u"}:
            # An undefined weak reference has no address and brings no code.
            if len(fields) == 3:
                found.append(fields[-1])
    return found


def main():
    nm, *objects = sys.argv[1:]
    failed = False
    for path in objects:
        listing = subprocess.run([nm, path], check=True, capture_output=True, text=True).stdout
        for symbol in weak_symbols(listing):
            name = subprocess.run(["c++filt", symbol], capture_output=True, text=True).stdout.strip() or symbol
            print(f"{path}: weak symbol {name}")
            failed = True
    print(f"isa symbols: {len(objects)} objects looked at")
    sys.exit(failed or not objects)


if __name__ == "__main__":
    main()
