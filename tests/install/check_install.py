#!/usr/bin/env python3
"""Installs a build into a scratch folder, moves it, and builds and runs consumers by CMake and by pkg-config."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def run(*command, **kwargs):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **kwargs)
    if done.returncode != 0:
        sys.exit(f"failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    for name in ("build", "consumer", "cmake", "pkg-config", "cxx", "cc", "libdir", "version"):
        parser.add_argument("--" + name, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        run(args.cmake, "--install", args.build, "--prefix", scratch / "first")
        # A package that works after a move holds no path of the machine that built it.
        prefix = scratch / "moved"
        shutil.move(scratch / "first", prefix)

        # Where the program looks for the plugin (cli/llm/plugin.h).
        if (prefix / "bin" / "varve").exists() and not (prefix / "lib" / "varve" / "libggml-varve.so").exists():
            sys.exit("the program is installed, but not the plugin in lib/varve")

        build = scratch / "build"
        run(args.cmake, "-S", args.consumer, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={args.cxx}", f"-DCMAKE_C_COMPILER={args.cc}")  # fmt: skip
        run(args.cmake, "--build", build)
        outputs = [run(build / "consumer_c"), run(build / "consumer_cpp")]

        pc_dir = prefix / args.libdir / "pkgconfig"
        environment = {**os.environ, "PKG_CONFIG_PATH": str(pc_dir)}
        pkg_config = [args.pkg_config, "--static", "varve"]
        cflags = run(*pkg_config, "--cflags", env=environment).split()
        libs = run(*pkg_config, "--libs", env=environment).split()
        program = scratch / "by_pkg_config"
        source = pathlib.Path(args.consumer, "consumer.c")
        run(args.cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", source, "-o", program, *cflags, *libs)
        libdir = str(prefix / args.libdir)
        outputs.append(run(program, env={**os.environ, "LD_LIBRARY_PATH": libdir}))
        outputs.append(run(*pkg_config, "--modversion", env=environment))
        if any(output.strip() != args.version for output in outputs):
            sys.exit(f"versions differ: expected {args.version}, got {outputs}")
    print(f"install: consumers by find_package and pkg-config work, version {args.version}")


if __name__ == "__main__":
    main()
