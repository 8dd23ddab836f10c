#!/usr/bin/env python3
"""make demo: one question about a long text, answered by stock llama.cpp with its f16 and q4_0 caches and with varve.

All three are the same unpatched llama-completion; only the cache differs. Then the same three are put to llama-perplexity
for how far they move the model's predictions. Every figure is measured in this run.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import llama_tools
from llama_tools import F16, Q4_0, VARVE

# The answer stands in the text's first paragraph, some 1,700 tokens before the question.
TEXT_START = "Chapter 2. Presenting the Case Study"
TEXT_CHARS = 9000
QUESTION = "What does Falcot Corp manufacture?"
FACT = "Falcot Corp is a manufacturer of high quality audio equipment."
EXPECTED = "audio equipment"
N_ANSWER = 40
N_CTX = 2048


def prompt_text():
    text = llama_tools.HANDBOOK.read_text(encoding="utf-8")
    start = text.find(TEXT_START)
    if start < 0 or FACT not in text[start : start + 2000]:
        sys.exit(f"demo: {llama_tools.HANDBOOK} is not the text this demo is about; remove it and run `make demo` again")
    body = text[start : start + TEXT_CHARS]
    body = body[: body.rindex("\n")]
    return (
        "<|im_start|>system\nYou answer questions about the text in one short sentence.<|im_end|>\n"
        f"<|im_start|>user\n{body}\n\nQuestion: {QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    )


def first_sentence(text):
    text = " ".join(text.replace("[end of text]", "").split())
    end = text.find(". ")
    return text if end < 0 else text[: end + 1]


def answer(model, prompt_path, cache, threads):
    """Asks once; the figures of the run beside the answer."""
    args = ["-m", model, "-f", prompt_path, "-n", N_ANSWER, "--temp", 0, "-no-cnv", "--no-display-prompt", "--ignore-eos"]
    args += ["-c", N_CTX, "-t", threads, "-fa", "on", "--perf", "-lv", 4]
    run = llama_tools.must_run("llama-completion", args, cache)
    n_prompt = int(run.number(r"prompt eval time =.*?/\s*(\d+) tokens"))
    return {
        "text": first_sentence(run.stdout),
        "n_prompt": n_prompt,
        "prompt_rate": run.number(r"prompt eval time =.*?([\d.]+) tokens per second"),
        "decode_rate": run.number(r" eval time =.*?runs.*?([\d.]+) tokens per second"),
        "kv_bytes": run.kv_bytes,
        "peak_rss_bytes": run.peak_rss_bytes,
        "stats": run.stats,
        "f16_cell_bytes": run.number(r"llama_kv_cache: size =\s+([\d.]+) MiB"),
    }


def print_table(header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  " + "  ".join(cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    started = time.monotonic()
    model = llama_tools.MODELS["smollm2"]
    for path in (model, llama_tools.HANDBOOK, llama_tools.LLAMA_BIN / "llama-completion", llama_tools.PLUGIN):
        if not path.is_file():
            sys.exit(f"demo: {path} is not there; run `make demo`, which makes it")
    caches = [F16, Q4_0, VARVE]

    print(f"Model: {model.name}. Text: the Debian Administrator's Handbook, from \"{TEXT_START}\".")
    print(f'Question, after the text: "{QUESTION}"')
    print(f'In the text, near its start: "{FACT}"\n')
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        prompt_path = pathlib.Path(scratch, "prompt.txt")
        prompt_path.write_text(prompt_text(), encoding="utf-8")
        for cache in caches:
            figures[cache] = answer(model, prompt_path, cache, args.threads)
            right = EXPECTED in figures[cache]["text"].lower().replace("-", " ")
            print(f"  {cache.name:<10}  {'right' if right else 'WRONG'}  {figures[cache]['text']}", flush=True)
            figures[cache]["right"] = right

    print("\nHow far the cache moves the model's predictions (2 chunks of 1,024 tokens of the text) ...", flush=True)
    with llama_tools.Perplexity(model, llama_tools.HANDBOOK, 1024, 2, args.threads) as perplexity:
        figures[F16]["quality"] = {
            "perplexity": perplexity.reference_perplexity, "kld": 0.0, "kld_p99": 0.0, "same_top_percent": 100.0,
        }  # fmt: skip
        for cache in caches[1:]:
            figures[cache]["quality"] = perplexity.measure(cache)

    n_tokens = figures[F16]["n_prompt"] + N_ANSWER - 1
    rows = []
    for cache in caches:
        f = figures[cache]
        # Stock allocates its whole window at once and varve what was written: bits are per element really in use.
        bits = 16 * f["kv_bytes"] / f16_bytes_of(figures, cache, n_tokens)
        q = f["quality"]
        rows.append([
            cache.name, f"{f['kv_bytes'] / 2**20:.1f} MiB", f"{bits:.2f}", f"{q['perplexity']:.2f}", f"{q['kld']:.4f}",
            f"{q['same_top_percent']:.1f} %", f"{f['prompt_rate']:.0f}", f"{f['decode_rate']:.1f}",
            f"{f['peak_rss_bytes'] / 2**20:.0f} MiB",
        ])  # fmt: skip
    header = ["cache", "KV held", "bits", "perplexity", "KLD", "same top", "prompt tok/s", "tok/s at depth", "peak RSS"]
    print(f"\n{n_tokens} tokens in the cache, {args.threads} threads, a window of {N_CTX}:")
    print_table(header, rows)
    print("bits: an element of K or V, scales, sinks and slack included. KLD, same top: next-token distribution against f16.")
    kernels = figures[VARVE]["stats"]["kernels"]
    tiers = figures[VARVE]["stats"]["caches"][-1]["tier_tokens"]
    print(f"varve: {kernels} kernels, tokens a tier: " + ", ".join(f"{n} {tier}" for tier, n in tiers.items() if n))
    print(f"({time.monotonic() - started:.0f} s)\n\nWith your own model:\n")
    plugin = os.path.relpath(llama_tools.PLUGIN)
    tool = str(llama_tools.LLAMA_BIN / "llama-server").replace(str(pathlib.Path.home()), "~")
    print(f"  GGML_BACKEND_PATH=$PWD/{plugin} {tool} -m your-model.gguf --device VARVE\n")
    if not figures[F16]["right"]:
        sys.exit("demo: stock f16 did not answer right, so the comparison of answers says nothing")
    if not figures[VARVE]["right"]:
        sys.exit("demo: varve did not answer right")


def f16_bytes_of(figures, cache, n_tokens):
    """f16 bytes of the elements that `cache` holds: of the whole window for stock, of the written cells for varve."""
    if cache.plugin:
        return sum(c["f16_bytes"] for c in figures[cache]["stats"]["caches"])
    return figures[F16]["kv_bytes"]


if __name__ == "__main__":
    main()
