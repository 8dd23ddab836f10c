#!/usr/bin/env python3
"""make bench: varve beside stock llama.cpp's caches, in one run.

usage: bench/run.py [--parts kernels,prefill,llama,append,memory,quality] [--full] [--write-docs]
Parts: one attention step (the kernels, beside ggml's own on f16, q8_0 and q4_0 in one process), prefill of 64 rows, llama-bench at
depths, appending, memory, quality. Writes build/bench/bench.json and the charts beside it; --write-docs puts tables and charts into
docs/benchmarks.md and docs/quality.md. --full adds 16k and 64k tokens, depth 8,192, Qwen2.5 at 16k, and the quality of Qwen2.5 and
Gemma 3. Ratios within a run are solid; times depend on what else the machine does, and the load average is kept with them.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import chart
import llama
import llama_tools
import machine
import quality

TREE = pathlib.Path(__file__).resolve().parent.parent
OUT = TREE / "build" / "bench"
DOCS = TREE / "docs"
CHART_DIR = DOCS / "charts"
PARTS = ["kernels", "prefill", "llama", "append", "memory", "quality"]
STOCK = ("f16", "q8_0", "q4_0")
SHAPES = ["8,8,128", "32,8,128", "9,3,64", "14,2,64", "4,1,256"]


def progress(text):
    print(text, file=sys.stderr, flush=True)


def program(name):
    path = llama_tools.BUILD_DIR / "bin" / name
    if not path.is_file():
        sys.exit(f"bench: {path} is not there; run `make bench`, which builds it")
    return path


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def kernel_rows(threads, tokens, n_rows=1, shapes=SHAPES, tiers="default", isa=None):
    """isa caps the kernels; None takes the best there is."""
    path = OUT / "kernels.json"
    args = [program("kernels_bench"), "--threads", threads, "--rows", n_rows, "--tiers", tiers, "--json", path]
    for shape in shapes:
        args += ["--shape", shape]
    for n in tokens:
        args += ["--tokens", n]
    progress(f"kernels_bench: {n_rows} row(s), {threads} thread(s), {', '.join(map(str, tokens))} tokens, {isa or 'best'} kernels")
    env = os.environ | ({"VARVE_ISA": isa} if isa else {})
    subprocess.run(list(map(str, args)), check=True, stdout=sys.stderr, env=env)
    return json.loads(path.read_text())


def bench_kernels(full):
    tokens = [1024, 4096, 16384, 65536] if full else [1024, 4096, 16384]
    rows = kernel_rows(1, tokens)
    rows += kernel_rows(2, tokens if full else [4096])
    rows += kernel_rows(1, [4096], shapes=["8,8,128", "32,8,128"], tiers="k8v8")
    rows += kernel_rows(1, [4096], isa="avx2")
    return rows


def bench_prefill(full):
    del full
    shapes = ["8,8,128", "9,3,64", "4,1,256"]
    rows = kernel_rows(1, [4096], n_rows=64, shapes=shapes)
    return rows + kernel_rows(1, [4096], n_rows=64, shapes=shapes, isa="avx2")


def threads_gain(row, rows):
    """How much faster a row's threads are than one, where one was measured as well."""
    alike = ("n_heads", "n_kv_heads", "head_dim", "n_tokens", "n_rows", "tiers", "isa")
    for one in rows:
        if row["n_threads"] > 1 and one["n_threads"] == 1 and all(one[key] == row[key] for key in alike):
            return f"{one['varve_ms'] / row['varve_ms']:.2f}"
    return ""


def kernel_table(rows):
    out = []
    for r in rows:
        gb_per_s = r["packed_bytes"] / r["varve_ms"] / 1e6
        ns = r["varve_ms"] * 1e6 / r["n_tokens"] / r["n_kv_heads"] / r["n_rows"]
        shape = f"{r['n_heads']},{r['n_kv_heads']},{r['head_dim']}"
        out.append(
            [shape, f"{r['n_tokens']:,}", r["tiers"], r["isa"], r["n_threads"], f"{r['varve_ms']:.3f}", f"{ns:.1f}"]
            # Many rows share one pass over the bytes, so bytes a second say nothing there.
            + ([f"{gb_per_s:.1f}", f"{gb_per_s / r['n_threads'] / r['l3_read_gb_per_s']:.2f}"] if r["n_rows"] == 1 else ["", ""])
            + [f"{r[s + '_ms']:.2f}" for s in STOCK]
            + [f"{r[s + '_ms'] / r['varve_ms']:.1f}" for s in STOCK]
            + [f"{r['f16_median_ms'] / r['varve_median_ms']:.1f}", threads_gain(r, rows)]
        )
    header = ["heads, KV heads, head_dim", "tokens", "tiers", "kernels", "threads", "varve ms", "ns a token and KV head"]
    header += ["GB/s", "of a core's L3 read"]
    header += [f"{s} ms" for s in STOCK] + [f"{s} / varve" for s in STOCK]
    return markdown([*header, "f16 / varve, medians", "against one thread"], out)


def step_chart(rows, shape="8,8,128"):
    n_heads, n_kv_heads, head_dim = map(int, shape.split(","))
    mine = [
        r for r in rows
        if (r["n_heads"], r["n_kv_heads"], r["head_dim"]) == (n_heads, n_kv_heads, head_dim)
        and r["n_threads"] == 1 and r["tiers"] == "default" and r["isa"] == rows[0]["isa"]
    ]  # fmt: skip
    series = {"varve": [(r["n_tokens"], r["varve_ms"]) for r in mine]}
    for stock in STOCK:
        series[f"stock {stock}"] = [(r["n_tokens"], r[f"{stock}_ms"]) for r in mine]
    title = f"One attention step, {n_kv_heads} KV heads of {head_dim}, 1 thread"
    return chart.line_chart(title, "tokens in the cache", "milliseconds", series, heavy={"varve"})


def bench_llama(full):
    depths = [0, 2048, 4096, 8192] if full else [0, 2048, 4096]
    rows = llama.speeds("smollm2", depths, progress=progress)
    if full:
        rows += llama.speeds("qwen", [0, 4096, 16384], caches=[], progress=progress)  # f16 and varve, once: it takes long
    return rows


def llama_table(rows):
    caches = list(dict.fromkeys(r["cache"] for r in rows))
    rate = {(r["model"], r["test"], r["depth"], r["cache"]): r for r in rows}
    out = []
    for key in dict.fromkeys((r["model"], r["test"], r["depth"]) for r in rows):
        values = [rate.get((*key, cache)) for cache in caches]
        cells = [f"{v['tokens_per_second']:.1f} ({v['median']:.1f})" if v else "not run" for v in values]
        f16, ours = rate[(*key, "stock f16")], rate[(*key, "varve")]
        ratios = [f"{ours[which] / f16[which]:.2f}" for which in ("tokens_per_second", "median")]
        out.append([key[0], key[1], f"{key[2]:,}", *cells, *ratios])
    return markdown(["model", "test", "depth", *caches, "varve / f16", "medians"], out)


def depth_chart(rows):
    series = {}
    for r in rows:
        if r["model"] == "smollm2" and r["test"].startswith("tg"):
            # Depth 0 has no place on a logarithmic axis; one token stands for it in no way, so it is left to the table.
            if r["depth"] > 0:
                series.setdefault(r["cache"], []).append((r["depth"], r["tokens_per_second"]))
    return chart.line_chart(
        "SmolLM2-135M, tokens a second at depth, 1 thread", "tokens in the cache", "tokens a second", series, heavy={"varve"}
    )


def bench_append(full):
    del full
    path = OUT / "append.json"
    progress("append_bench")
    subprocess.run(
        [str(program("append_bench")), f"--benchmark_out={path}", "--benchmark_out_format=json"], check=True, stdout=sys.stderr
    )
    rows = []
    for b in json.loads(path.read_text())["benchmarks"]:
        if b.get("aggregate_name") != "min":
            continue
        match = re.match(r"Append/(\w+)/(\d+)", b["name"])
        rows.append({"method": match.group(1), "n_tokens": int(match.group(2)), "ns": b["cpu_time"], "bits": b["bits"]})
    return rows


def append_table(rows):
    out = []
    for method in dict.fromkeys(r["method"] for r in rows):
        mine = [r for r in rows if r["method"] == method]
        times = [r["ns"] for r in mine]
        out.append([method, *(f"{t:.0f}" for t in times), f"{max(times) / min(times):.2f}", f"{mine[-1]['bits']:.2f}"])
    lengths = [f"ns at {n:,} tokens" for n in dict.fromkeys(r["n_tokens"] for r in rows)]
    return markdown(["method", *lengths, "largest / least", "bits an element"], out)


def bench_memory(full):
    return llama.memory("smollm2", [2048, 7936] if full else [2048, 4096], threads=2, progress=progress)


def memory_table(rows):
    return markdown(
        ["model", "tokens", "cache", "KV held", "bits an element", "peak RSS"],
        [
            [r["model"], f"{r['n_tokens']:,}", r["cache"], f"{r['kv_bytes'] / 2**20:.1f} MiB", f"{r['bits']:.2f}",
             f"{r['peak_rss_bytes'] / 2**20:.0f} MiB"]
            for r in rows
        ],
    )  # fmt: skip


def bench_quality(full):
    return quality.rows(["smollm2", "qwen", "gemma"] if full else ["smollm2"], quality.CACHES, progress)


def quality_table(rows):
    def cells(r):
        if "kld" not in r:
            return ["0", f"{r['perplexity']:.2f}", "100 %"]
        return [f"{r['kld']:.4f}", f"{r['perplexity']:.2f}", f"{r['same_top_percent']:.1f} %"]

    out = [[r["model"], r["cache"], f"{r['bits']:.2f}".rstrip("0").rstrip("."), *cells(r)] for r in rows]
    return markdown(["model", "cache", "bits", "KLD", "perplexity", "same top token"], out)


TABLES = {
    "kernels": kernel_table, "prefill": kernel_table, "llama": llama_table, "append": append_table, "memory": memory_table,
    "quality": quality_table,
}  # fmt: skip
PAGES = {"quality": "quality.md"}  # the others: benchmarks.md
CHARTS = {"kernels": ("step", step_chart), "llama": ("depth", depth_chart)}


def machine_table(facts):
    def text(value):
        if isinstance(value, dict):
            return ", ".join(f"{k} {v}" for k, v in value.items())
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    return markdown(["machine", ""], [[key.replace("_", " "), text(value)] for key, value in facts.items()])


def replace_section(name, body):
    """Puts `body` between the marks of that name on its page."""
    path = DOCS / PAGES.get(name, "benchmarks.md")
    page = path.read_text(encoding="utf-8")
    begin, end = f"<!-- bench {name} -->\n", f"\n<!-- end {name} -->"
    if begin not in page or end not in page:
        sys.exit(f"bench: {path} has no section {name}")
    head, rest = page.split(begin, 1)
    path.write_text(head + begin + body + end + rest.split(end, 1)[1], encoding="utf-8")


def write_docs(result):
    if any(part in result and part not in PAGES for part in PARTS):
        replace_section("machine", machine_table(result["machine"]))
    for part in PARTS:
        if part in result:
            body = TABLES[part](result[part])
            if part in CHARTS:
                name = CHARTS[part][0]
                CHART_DIR.mkdir(exist_ok=True)
                shutil.copy(OUT / f"{name}.svg", CHART_DIR / f"{name}.svg")
                body += f"\n\n![{part}](charts/{name}.svg)"
            replace_section(part, body)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--write-docs", action="store_true")
    args = parser.parse_args()
    parts = args.parts.split(",")
    for part in parts:
        if part not in PARTS:
            parser.error(f'unknown part "{part}"; valid: {", ".join(PARTS)}')
    OUT.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    result = {"schema": 1, "machine": machine.describe(TREE)}
    for part in parts:
        result[part] = globals()[f"bench_{part}"](args.full)
        print(f"\n{part}\n{TABLES[part](result[part])}", flush=True)
        if part in CHARTS:
            name, draw = CHARTS[part]
            (OUT / f"{name}.svg").write_text(draw(result[part]), encoding="utf-8")
    result["machine"]["load_average_at_end"] = machine.describe(TREE)["load_average"]
    result["seconds"] = round(time.monotonic() - started)
    (OUT / "bench.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{result['seconds']} s; figures in {OUT.relative_to(TREE)}/bench.json")
    if args.write_docs:
        write_docs(result)


if __name__ == "__main__":
    main()
