#!/usr/bin/env python3
"""Compiles and runs the C and C++ blocks of README.md and docs/*.md, and checks what their text points at.

A block ```cpp or ```c with a main() must compile without a warning and end with 0; when the next block is ```text, it is
what the program prints. Relative links must lead to files, and `make X` in a ```sh block must name a target of the Makefile.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(text):
    return [(match.group(1), match.group(2)) for match in BLOCK.finditer(text)]


def programs(text):
    """[(language, source, what it prints or None)]"""
    found = blocks(text)
    out = []
    for index, (language, body) in enumerate(found):
        if language in ("c", "cpp") and re.search(r"\bint main\(", body):
            follows = found[index + 1] if index + 1 < len(found) else ("", "")
            out.append((language, body, follows[1] if follows[0] == "text" else None))
    return out


def broken_links(page, text):
    outside = re.compile(r"^[a-z]+:")
    prose = BLOCK.sub("", text)
    targets = [target for target in LINK.findall(prose) if not outside.match(target)]
    return [f"{page.name}: link to {target}, which is not there" for target in targets if not (page.parent / target).exists()]


def make_targets(makefile):
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))


def unknown_make_targets(page, text, targets):
    named = {t for language, body in blocks(text) if language == "sh" for t in re.findall(r"\bmake ([a-z][\w-]*)", body)}
    return [f"{page.name}: `make {target}` is no target of the Makefile" for target in sorted(named - targets)]


def run_program(args, page, language, source, expected):
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch, "program." + ("c" if language == "c" else "cc"))
        path.write_text(source, encoding="utf-8")
        objects = path.with_suffix(".o")
        compiler = [args.cc, "-std=c11"] if language == "c" else [args.cxx, "-std=c++20"]
        flags = args.flags.split()
        steps = [
            [*compiler, *flags, "-Wall", "-Wextra", "-Werror", f"-I{args.tree}/include", "-c", path, "-o", objects],
            [args.cxx, *flags, objects, args.library, "-fopenmp", "-o", path.with_suffix("")],
            [path.with_suffix("")],
        ]
        for step in steps:
            done = subprocess.run(list(map(str, step)), cwd=scratch, capture_output=True, text=True)
            if done.returncode != 0:
                return [f"{page.name}: {step[0]} failed ({done.returncode}) on\n{source}\n{done.stdout}{done.stderr}"]
    if expected is not None and done.stdout != expected:
        return [f"{page.name}: a program prints\n{done.stdout}where the page says\n{expected}"]
    return []


def main():
    parser = argparse.ArgumentParser()
    for name in ("tree", "cxx", "cc", "library", "flags"):
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    tree = pathlib.Path(args.tree)
    targets = make_targets((tree / "Makefile").read_text(encoding="utf-8"))
    errors, n_programs = [], 0
    pages = [tree / "README.md", tree / "HACKING.md", *sorted((tree / "docs").rglob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        errors += broken_links(page, text) + unknown_make_targets(page, text, targets)
        for language, source, expected in programs(text):
            n_programs += 1
            errors += run_program(args, page, language, source, expected)
    if n_programs == 0:
        errors.append("no program found in README.md and docs/")
    print("\n".join(errors) or f"pages: {len(pages)} read, {n_programs} programs compiled and run")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
