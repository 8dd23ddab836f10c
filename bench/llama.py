"""llama-bench at depths, and memory: stock caches and varve side by side, in turn."""

import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import llama_tools
from llama_tools import F16, Q4_0, Q8_0, VARVE

VARVE_AVX2 = llama_tools.Cache(plugin=True, isa="avx2", label="varve, AVX2")
CACHES = [F16, Q8_0, Q4_0, VARVE]
FAST_CACHES = [F16, VARVE]
# A quantised stock cache prefills so slowly that its deep points would take most of the run's time.
SLOW_CACHE_DEPTH = 4096


def bench_args(model, threads, repetitions):
    return ["-m", model, "-t", threads, "-fa", 1, "-r", repetitions, "-o", "json"]


def tokens_a_second(run, cache):
    """[(n_prompt, n_gen, depth, tokens a second of each repetition)] of one llama-bench run."""
    try:
        rows = json.loads(run.stdout)
    except json.JSONDecodeError as error:
        raise llama_tools.ToolError(f"llama-bench ({cache.name}) printed no JSON: {error}\n{run.stderr[-500:]}") from None
    return [(row["n_prompt"], row["n_gen"], row["n_depth"], row["samples_ts"]) for row in rows]


def speeds(model_name, depths, caches=(*CACHES, VARVE_AVX2), threads=1, n_gen=16, repetitions=3, progress=print):
    """Rows {model, cache, test, depth, threads, tokens_per_second (the best), median}: decode at each depth, prefill of 512
    and 1,024. The caches that ratios are of come twice, far apart, so that a change in the machine's pace meets both."""
    samples = {}
    model = llama_tools.MODELS[model_name]
    for cache in [*caches, *FAST_CACHES]:
        own_depths = [d for d in depths if cache in FAST_CACHES or d <= SLOW_CACHE_DEPTH]
        for test in (
            ["-p", 0, "-n", n_gen, "-d", ",".join(map(str, own_depths))],
            ["-p", "512,1024", "-n", 0, "-d", 0],
        ):
            progress(f"llama-bench {model_name} {cache.name} {' '.join(map(str, test))}")
            run = llama_tools.must_run(
                "llama-bench", [*bench_args(model, threads, repetitions), *test], cache, timeout=3600
            )
            for n_prompt, n_generated, depth, rates in tokens_a_second(run, cache):
                name = f"pp{n_prompt}" if n_prompt else f"tg{n_generated}"
                samples.setdefault((cache.name, name, depth), []).extend(rates)
    return [
        {"model": model_name, "cache": cache, "test": name, "depth": depth, "threads": threads,
         "tokens_per_second": max(rates), "median": statistics.median(rates)}
        for (cache, name, depth), rates in samples.items()
    ]  # fmt: skip


def memory(model_name, lengths, threads, progress=print):
    """Rows {model, cache, n_tokens, kv_bytes, peak_rss_bytes, bits}: a prompt of n tokens, the whole process measured."""
    rows = []
    model = llama_tools.MODELS[model_name]
    for n_tokens in lengths:
        f16_kv_bytes = None
        for cache in CACHES:
            if cache not in (F16, VARVE) and n_tokens > SLOW_CACHE_DEPTH:
                continue
            progress(f"memory {model_name} {cache.name} {n_tokens} tokens")
            # llama-bench sizes the window to the prompt, so nothing is held for tokens that never come.
            args = [*bench_args(model, threads, 1), "--no-warmup", "-p", n_tokens, "-n", 0, "-v"]
            run = llama_tools.must_run("llama-bench", args, cache, timeout=3600)
            if cache is F16:
                f16_kv_bytes = run.kv_bytes
            rows.append({
                "model": model_name, "cache": cache.name, "n_tokens": n_tokens, "kv_bytes": run.kv_bytes,
                "peak_rss_bytes": run.peak_rss_bytes, "bits": run.bits or 16 * run.kv_bytes / f16_kv_bytes,
            })  # fmt: skip
    return rows
