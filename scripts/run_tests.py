#!/usr/bin/env python3
"""Everything `make test` runs, one stage after the other; a stage that fails does not stop the next.

usage: run_tests.py [--only STAGE[,STAGE...]] [--jobs N]
Stages: release (library, layers, install, examples, pages), plugin (stock llama.cpp and the varve program, with SmolLM2),
asan-ubsan, lint; and, only when named, models (Gemma 3 and Qwen2.5 too). The last line is "N passed, N failed"; the exit status
says whether anything failed.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time
import xml.etree.ElementTree

TREE = pathlib.Path(__file__).resolve().parent.parent
DEFAULT_STAGES = ["release", "plugin", "asan-ubsan", "lint"]
STAGES = DEFAULT_STAGES + ["models"]
STARTED = time.monotonic()


class Tally:
    def __init__(self):
        self.passed = 0
        self.failures = []

    def add(self, name, ok):
        if ok:
            self.passed += 1
        else:
            self.failures.append(name)


def say(text):
    print(f"[{time.monotonic() - STARTED:6.0f} s] {text}", flush=True)


def run(name, command, tally):
    """Runs one command that counts as one test; its output is shown only when it fails."""
    done = subprocess.run(command, cwd=TREE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ok = done.returncode == 0
    tally.add(name, ok)
    say(f"{'ok    ' if ok else 'FAILED'} {name}")
    if not ok:
        text = done.stdout.decode(errors="replace")
        print("\n".join(text.splitlines()[-200:]), flush=True)
    return ok


def gtest_cases(report):
    """Cases that one GoogleTest program passed, from what it printed; 1 for a program of another kind."""
    match = re.search(r"\[  PASSED  \] (\d+) tests?\.", report)
    return int(match.group(1)) if match else 1


def ctest(stage, preset, tally, jobs, extra):
    """Runs ctest and adds each test; a GoogleTest program counts with its cases."""
    report = TREE / "build" / preset / f"{stage}-report.xml"
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", f"build/{preset}", "--output-junit", str(report), "--output-on-failure"]
    # Passing programs' output too, whole: it has the number of their cases at its end.
    command += ["--test-output-size-passed", "1000000", "--timeout", "900", "-j", str(jobs), *extra]
    done = subprocess.run(command, cwd=TREE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if not report.is_file():
        tally.add(f"{stage}: ctest", False)
        print(done.stdout.decode(errors="replace"), flush=True)
        return
    n_before, n_failed_before = tally.passed, len(tally.failures)
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{stage}: {case.get('name')}"
        text = case.findtext("system-out") or ""
        # A test that was skipped or could not be started has not passed.
        if case.get("status") == "run":
            tally.passed += gtest_cases(text)
        else:
            tally.add(name, False)
            say(f"FAILED {name}")
            print("\n".join(text.splitlines()[-100:]), flush=True)
    n_passed, n_failed = tally.passed - n_before, len(tally.failures) - n_failed_before
    if n_passed + n_failed == 0:
        tally.add(f"{stage}: no tests were found", False)
    say(f"{stage}: {n_passed} passed, {n_failed} failed")


def build_release(tally):
    """llama.cpp, then our own build against it; each counts once, however many stages ask."""
    if build_release.result is None:
        build_release.result = run("stock llama.cpp", ["scripts/setup_llama.sh"], tally) and run(
            "release: build", ["scripts/build.sh", "release"], tally
        )
    return build_release.result


build_release.result = None


def stage_release(tally, jobs):
    if build_release(tally):
        ctest("release", "release", tally, jobs, ["-LE", "plugin|cli|models"])


def stage_plugin(tally, jobs):
    # Tests that run a real model have threads of their own and say RUN_SERIAL.
    ok = run("plugin: model and text", ["scripts/setup_models.sh", "smollm2", "gemma", "text"], tally)
    if build_release(tally) and ok:
        ctest("plugin", "release", tally, jobs, ["-L", "plugin|cli"])


def stage_models(tally, jobs):
    del jobs
    ok = run("models: models and text", ["scripts/setup_models.sh", "smollm2", "gemma", "qwen", "text"], tally)
    if build_release(tally) and ok:
        ctest("models", "release", tally, 1, ["-L", "models"])


def stage_asan_ubsan(tally, jobs):
    if run("asan-ubsan: build", ["scripts/build.sh", "asan-ubsan"], tally):
        os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=1:strict_string_checks=1")
        os.environ.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
        ctest("asan-ubsan", "asan-ubsan", tally, jobs, [])


def stage_lint(tally, jobs):
    del jobs
    run("lint", ["python3", "scripts/lint.py"], tally)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(DEFAULT_STAGES), help="stages, with commas between")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    stages = args.only.split(",")
    for stage in stages:
        if stage not in STAGES:
            parser.error(f'unknown stage "{stage}"; valid: {", ".join(STAGES)}')

    tally = Tally()
    for stage in stages:
        globals()["stage_" + stage.replace("-", "_")](tally, args.jobs)
    for name in tally.failures:
        print(f"failed: {name}")
    print(f"{tally.passed} passed, {len(tally.failures)} failed", flush=True)
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
