#!/usr/bin/env python3
"""Formatting (clang-format 14), clang-tidy 14 and small habits; prints what is wrong and how to mend it.

usage: lint.py [--no-tidy | --fix-format]
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".hpp", ".c", ".cc"}
MAX_LINES = 800
FORBIDDEN = [
    (re.compile(r"\b(TODO|FIXME|XXX)\b"), "an unfinished mark"),
    (re.compile(r"(?<![\w.])/(root|work|home)/\w"), "a path of one machine"),
]


def tracked_files():
    """Files of the tree that git would commit; all but build/ when there is no git."""
    # Why safe.directory: a clone may belong to another user than the one who tests it.
    command = ["git", "-c", f"safe.directory={TREE}", "ls-files", "-co", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=TREE, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        skipped = {"build", ".git", "__pycache__"}
        paths = (path.relative_to(TREE) for path in TREE.rglob("*"))
        listing = [str(path) for path in paths if not skipped & set(path.parts)]
    return [TREE / name for name in listing if (TREE / name).is_file()]


def check_format(files):
    errors = []
    for start in range(0, len(files), 40):
        chunk = [str(path) for path in files[start : start + 40]]
        done = subprocess.run(["clang-format-14", "--dry-run", "-Werror", *chunk], capture_output=True, text=True)
        errors += sorted(set(re.findall(r"^(.+?):\d+:\d+: error:", done.stderr, re.M)))
    return [f"{os.path.relpath(name, TREE)}: not formatted; run `make format`" for name in errors]


def check_habits(files):
    errors = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(TREE)
        if path.suffix in SUFFIXES and len(lines) > MAX_LINES:
            errors.append(f"{name}: {len(lines)} lines; split it below {MAX_LINES}")
        if path == pathlib.Path(__file__).resolve():
            continue
        for number, line in enumerate(lines, 1):
            for pattern, what in FORBIDDEN:
                if pattern.search(line):
                    errors.append(f"{name}:{number}: {what}: {line.strip()[:80]}")
    return errors


def check_python(files):
    errors = []
    for path in files:
        try:
            compile(path.read_text(encoding="utf-8"), str(path), "exec")
        except SyntaxError as error:
            errors.append(f"{path.relative_to(TREE)}: {error}")
    return errors


def check_shell(files):
    errors = []
    for path in files:
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
        if done.returncode != 0:
            errors.append(done.stderr.strip())
    return errors


def configure_database():
    """A database of compile commands, for clang-tidy alone."""
    build = TREE / "build" / "lint"
    llama = pathlib.Path(os.environ.get("VARVE_CACHE_DIR", pathlib.Path.home() / ".cache/varve"), "llama.cpp")
    with_llama = "ON" if (llama / "src").is_dir() else "OFF"
    subprocess.run(
        ["cmake", "-S", str(TREE), "-B", str(build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug"]
        + ["-DCMAKE_C_COMPILER_LAUNCHER=", "-DCMAKE_CXX_COMPILER_LAUNCHER="]
        + [f"-DVARVE_LLAMA_CPP_DIR={llama}", f"-DVARVE_BUILD_GGML={with_llama}", f"-DVARVE_BUILD_CLI={with_llama}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return build


def check_tidy(jobs):
    build = configure_database()
    entries = json.loads((build / "compile_commands.json").read_text())
    folders = ("src/", "plugin/", "cli/", "examples/")
    names = {os.path.relpath(entry["file"], TREE) for entry in entries}
    names = sorted(name for name in names if name.startswith(folders))

    def tidy(name):
        done = subprocess.run(
            ["clang-tidy-14", "-p", str(build), "--quiet", name], cwd=TREE, capture_output=True, text=True
        )
        if done.returncode == 0:
            return None
        found = [line for line in done.stdout.splitlines() if ": error:" in line or ": warning:" in line]
        return "\n".join(found) or f"{name}: clang-tidy failed: {done.stderr.strip()[-400:]}"

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        found = [text for text in pool.map(tidy, names) if text]
    unique = sorted({line.replace(f"{TREE}/", "") for text in found for line in text.splitlines()})
    return unique, len(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-tidy", action="store_true", help="leave out the slow part")
    parser.add_argument("--fix-format", action="store_true", help="apply clang-format and do nothing else")
    args = parser.parse_args()
    files = tracked_files()
    cxx_files = [path for path in files if path.suffix in SUFFIXES]
    if args.fix_format:
        subprocess.run(["clang-format-14", "-i", *map(str, cxx_files)], check=True)
        return
    errors = check_format(cxx_files)
    errors += check_habits(files)
    errors += check_python([path for path in files if path.suffix == ".py"])
    errors += check_shell([path for path in files if path.suffix == ".sh" or path.parts[-2:] == (".ci", "run")])
    n_tidied = 0
    if not args.no_tidy:
        found, n_tidied = check_tidy(os.cpu_count() or 1)
        errors += found
    for error in errors:
        print(error)
    print(f"lint: {len(files)} files, {n_tidied} through clang-tidy, {len(errors)} complaints")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
