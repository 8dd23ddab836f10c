#!/usr/bin/env python3
"""Compares the reader in Python with the library, on files just written and on the frozen ones; and checks that it refuses damage.

usage: check_reader.py WRITE_SAMPLES FROZEN_FOLDER
"""

import pathlib
import subprocess
import sys
import tempfile

import read_varve

# Samples of codecs that the reader does not decode.
OPAQUE = {"per_token", "per_token_statistics", "cells_uniform", "cells_age_tiered"}


def check_folder(folder):
    """(problems, values compared)"""
    problems, n_values = [], 0
    files = sorted(folder.glob("*.varve"))
    for path in files:
        kind, model, _, caches = read_varve.read_file(path)
        if model != "a model":
            problems.append(f"{path.name}: model \"{model}\"")
        for index, cache in enumerate(caches):
            decoded = cache.decode()
            if (decoded is None) != (path.stem in OPAQUE):
                problems.append(f"{path.name}: cache {index} decoded: {decoded is not None}")
            for side, rows in zip("kv", decoded or []):
                expected = (folder / f"{path.stem}_{index}_{side}.f32").read_bytes()
                values = read_varve.flat(rows)
                n_values += len(values)
                if read_varve.struct.pack(f"<{len(values)}f", *values) != expected:
                    problems.append(f"{path.name}: cache {index} side {side} differs from the library")
    if not files:
        problems.append(f"{folder}: no files")
    return problems, n_values


def check_damage(path):
    """The reader sees a flipped bit anywhere, and a cut."""
    data, problems = bytearray(path.read_bytes()), []
    for at in range(0, len(data), 7):
        data[at] ^= 1
        try:
            read_varve.read_sections(memoryview(data))
            problems.append(f"{path.name}: byte {at} flipped, and nothing noticed")
        except read_varve.FormatError:
            pass
        data[at] ^= 1
    try:
        read_varve.read_sections(memoryview(data)[:-1])
        problems.append(f"{path.name}: cut, and nothing noticed")
    except read_varve.FormatError:
        pass
    return problems


def main():
    program, frozen = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([program, scratch], check=True)
        problems, n_values = check_folder(pathlib.Path(scratch))
        problems += check_damage(pathlib.Path(scratch, "kivi.varve"))
    versions = sorted(folder for folder in frozen.iterdir() if folder.is_dir())
    for folder in versions:
        more, n_more = check_folder(folder)
        problems += more
        n_values += n_more
    print("\n".join(problems))
    print(f"{n_values} values compared, {len(versions)} frozen versions, {len(problems)} problems")
    sys.exit(bool(problems) or not versions or n_values == 0)


if __name__ == "__main__":
    main()
