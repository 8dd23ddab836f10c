#!/usr/bin/env python3
"""Checks who includes whom (docs/architecture.md), and that kernel ISA files include next to nothing.

usage: check_layers.py TREE
"""

import pathlib
import re
import sys

# A layer may include itself and these. The order is the order of docs/architecture.md.
LAYERS = {
    "base": set(),
    "layout": {"base"},
    "kernels": {"base", "layout"},
    "codec": {"base", "layout", "kernels"},
    "policy": {"base", "layout"},
    "session": {"base", "layout", "codec"},
    "cache": {"base", "layout", "kernels", "codec", "policy", "session"},
    "c_api": {"base", "layout", "kernels", "codec", "policy", "session", "cache"},
}
# Outside of src/ only the public headers are seen, plus what these programs are made to talk to.
OUTSIDE = {
    "plugin/ggml": r"ggml[\w-]*\.h",
    "cli": r"(llama|ggml|ggml-backend|ggml-cpu)\.h|nlohmann/.*|CLI/.*",
    "examples": r"(?!)",
}
ISA_FILE = re.compile(r"_(avx2|avx512)\.cc$")
ISA_SYSTEM_HEADERS = {"immintrin.h", "cstddef", "cstdint", "cstring"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
SOURCE_SUFFIXES = {".h", ".hpp", ".c", ".cc"}


def includes(path):
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in SOURCE_SUFFIXES)


def check_src(tree):
    errors = []
    src = tree / "src"
    for path in sources(src):
        layer = path.relative_to(src).parts[0]
        where = path.relative_to(tree)
        if layer not in LAYERS:
            errors.append(f"{where}: \"{layer}\" is not a layer; layers: {', '.join(LAYERS)}")
            continue
        for bracket, header in includes(path):
            target = header.split("/")[0]
            if bracket == '"' and target == "varve":
                if layer != "c_api" and layer != "session":
                    errors.append(f"{where}: only c_api knows the public headers, but it includes {header}")
            elif bracket == '"' and target != layer and target not in LAYERS[layer]:
                errors.append(f"{where}: layer {layer} may not include {header}")
            if ISA_FILE.search(path.name):
                allowed_own = bracket == '"' and target in {"layout", "kernels"}
                if not allowed_own and header not in ISA_SYSTEM_HEADERS:
                    errors.append(f"{where}: an ISA file may not include {header}")
    return errors


def check_outside(tree):
    errors = []
    for folder, extra in OUTSIDE.items():
        root = tree / folder
        own = {p.relative_to(root).as_posix() for p in sources(root)} | {p.name for p in sources(root)}
        for path in sources(root):
            for bracket, header in includes(path):
                if bracket == "<" or header.startswith("varve/") or header in own:
                    continue
                if not re.fullmatch(extra, header):
                    errors.append(f"{path.relative_to(tree)}: {folder} may not include {header}")
    return errors


def check_public(tree):
    """A public header stands on the standard library and its siblings alone."""
    errors = []
    for path in sources(tree / "include"):
        for bracket, header in includes(path):
            if bracket == '"' and not header.startswith("varve/"):
                errors.append(f"{path.relative_to(tree)}: a public header may not include {header}")
    return errors


def check_tree(tree):
    return check_src(tree) + check_outside(tree) + check_public(tree)


def main():
    tree = pathlib.Path(sys.argv[1])
    if not (tree / "src" / "base").is_dir():
        sys.exit(f"check_layers: {tree} is not a varve tree")
    errors = check_tree(tree)
    print("\n".join(errors) or "layers: all includes go downwards")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
