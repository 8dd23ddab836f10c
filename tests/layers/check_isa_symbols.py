#!/usr/bin/env python3
"""Looks at objects compiled for one instruction set, <family>_<isa>.cc.

No weak symbol: that is an inline or template function, and the linker keeps one copy for the whole program, which could be
the copy made of instructions that this CPU does not have. What they show is named <Family>[<What>]<Isa>, tables with a k
before: QkPackAvx512, kRowsAvx2.

usage: check_isa_symbols.py NM OBJECT...
"""

import pathlib
import re
import subprocess
import sys


def symbols(nm_output):
    """[(letter, name)] of the symbols that the object defines."""
    found = []
    for line in nm_output.splitlines():
        match = re.match(r"[0-9a-f]+ (\w) (.*)$", line)
        if match:
            found.append(match.groups())
    return found


def weak_symbols(nm_output):
    return [name for letter, name in symbols(nm_output) if letter in "WVwvu"]


def misnamed_symbols(file_name, nm_output):
    """Global functions and tables whose names break the grammar, for an object of this source file."""
    match = re.match(r"(\w+)_(avx2|avx512)\.cc", file_name)
    if not match:
        return [f"{file_name}: not named <family>_<isa>.cc"]
    family = "".join(part.capitalize() for part in match.group(1).split("_"))
    grammar = re.compile(rf"varve::k?{family}([A-Z]\w*)?{match.group(2).capitalize()}(\(.*)?")
    return [name for letter, name in symbols(nm_output) if letter in "TDBR" and not grammar.fullmatch(name)]


def main():
    nm, *objects = sys.argv[1:]
    faults = []
    for path in objects:
        listing = subprocess.run([nm, "-C", path], check=True, capture_output=True, text=True).stdout
        name = pathlib.Path(path).name
        faults += [f"{name}: weak symbol {symbol}" for symbol in weak_symbols(listing)]
        faults += [f"{name}: {symbol} is not named <Family>[<What>]<Isa>" for symbol in misnamed_symbols(name, listing)]
    print("\n".join(faults))
    print(f"isa symbols: {len(objects)} objects looked at, {len(faults)} faults")
    sys.exit(bool(faults) or not objects)


if __name__ == "__main__":
    main()
