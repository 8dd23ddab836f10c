"""What a cache does to a model's answers: llama-perplexity against the logits of stock f16."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import llama_tools
from llama_tools import Cache

N_CTX = 1024
N_CHUNKS = 2
STOCK_BITS = {"q8_0": 8.5, "q4_0": 4.5}


def ours(label, mid=256, **kwargs):
    """The text is short beside the default tiers, so these are shorter too."""
    settings = kwargs.pop("settings", f"age_recent_boundary=64,age_mid_boundary={mid}")
    return Cache(plugin=True, label=f"varve, {label}", settings=settings, **kwargs)


CACHES = [
    llama_tools.Q8_0,
    llama_tools.Q4_0,
    ours("uniform 8", method="uniform", settings="uniform_bits=8"),
    ours("safe", preset="safe"),
    ours("default"),
    ours("small", preset="small", mid=64),
]


def rows(models, caches, progress=print):
    """Rows {model, cache, bits, kld, kld_p99, perplexity, same_top_percent}; stock f16 first, with its perplexity alone."""
    out = []
    for model in models:
        progress(f"quality {model} stock f16")
        with llama_tools.Perplexity(llama_tools.MODELS[model], llama_tools.HANDBOOK, N_CTX, N_CHUNKS, 1) as perplexity:
            out.append({"model": model, "cache": "stock f16", "bits": 16, "perplexity": perplexity.reference_perplexity})
            for cache in caches:
                progress(f"quality {model} {cache.name}")
                figures = perplexity.measure(cache)
                bits = figures["bits"] if cache.plugin else STOCK_BITS[cache.stock_type]
                out.append({"model": model, "cache": cache.name, **figures, "bits": bits})
    return out
