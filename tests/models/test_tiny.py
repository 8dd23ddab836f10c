"""Models of random weights with the caches that no small real model has: odd head sizes, ALiBi, sinks, soft-cap, shared layers, MLA.

Their next tokens mean nothing, but they depend on every logit and value, so a KL divergence against the stock f16 cache shows what
a cache changes.
"""

import pathlib
import tempfile
import unittest

import llama_tools
import tiny_gguf
import tiny_models
from llama_tools import F16, Q4_0, Q8_0, Cache, Perplexity, must_run, run_tool

EXACT = Cache(plugin=True, method="fp16")
EIGHT = Cache(plugin=True, method="uniform", settings="uniform_bits=8")
TIERS = Cache(plugin=True, settings="age_recent_boundary=64,age_mid_boundary=256")
# Attention that looks at few tokens at a time, as that of real models.
SHARP = 1.5
SPREAD = {"attn_q.weight": SHARP, "attn_k.weight": SHARP, "attn_qkv.weight": SHARP, "output.weight": 1.5}


class Tiny(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text"
        self.text.write_text(llama_tools.HANDBOOK.read_text(errors="replace")[:4000])

    def write(self, model, spread=None, seed=1):
        path = self.folder / f"model-{len(list(self.folder.iterdir()))}.gguf"
        tiny_gguf.write(path, *model, tiny_gguf.Normal(seed, (spread or {}) | SPREAD))
        return path

    def perplexity(self, path):
        return Perplexity(path, self.text, 512, 2, 1)

    def check(self, path, n_layers, stock_runs=True):
        """fp16 is far nearer to stock's f16 than q8_0 is, 8 bits are as good as q8_0, and the tiers are within twice q4_0: these
        keys have no channels that matter more than others, from which the tiers' codec gains with real models. Without a stock
        quantised cache for this head size: bounds."""
        with self.perplexity(path) as perplexity:
            kld = {cache.name: perplexity.measure(cache)["kld"] for cache in (EXACT, EIGHT, TIERS)}
            eight, four = (perplexity.measure(cache)["kld"] for cache in (Q8_0, Q4_0)) if stock_runs else (0.002, 0.05)
        print(self.id(), kld, "q8_0", eight, "q4_0", four)
        self.assertLess(kld[EXACT.name], 0.3 * eight)
        self.assertLess(kld[EIGHT.name], 1.3 * eight)
        self.assertLess(kld[TIERS.name], 2 * four)
        run = must_run("llama-completion", ["-m", path, "-p", "a", "-n", 2, "-no-cnv", "-c", 256, "-t", 1, "-fa", "on"], EIGHT)
        self.assertEqual(sum(cache["layers"] - cache["plain_layers"] for cache in run.stats["caches"]), n_layers)

    def check_seen(self, path, other):
        """That the two models differ in what they say, by more than any cache may change."""
        with self.perplexity(path) as perplexity, self.perplexity(other) as changed:
            changed.logits = perplexity.logits
            self.assertGreater(changed.measure(F16)["kld"], 0.02)

    def test_head_size_80_partial_rope(self):
        self.check(self.write(tiny_models.phi2()), 3, stock_runs=False)

    def test_head_size_96(self):
        self.check(self.write(tiny_models.phi3()), 3)

    def test_head_size_40_alibi(self):
        self.check(self.write(tiny_models.bloom()), 3, stock_runs=False)

    def test_attention_sinks(self):
        model = tiny_models.gpt_oss()
        path = self.write(model, {"attn_sinks.weight": (2.0, 1.0)})
        self.check(path, 4)
        self.check_seen(path, self.write(model, {"attn_sinks.weight": (-100.0, 1.0)}))

    def test_soft_cap(self):
        path = self.write(tiny_models.gemma2(softcap=2.0))
        self.check(path, 4)
        self.check_seen(path, self.write(tiny_models.gemma2(softcap=50.0)))

    def test_layers_that_read_the_cache_of_another(self):
        """22 layers of which two have no cache. llama.cpp's scheduler gives these layers' attention to the CPU backend, which reads
        decoded copies; with -fa auto it then does without flash attention, and the plugin keeps plain storage."""
        # Queries and keys are normed, and their products not scaled.
        calm = {"attn_k_norm.weight": (0.15, 0.02), "altup_predict_coef.weight": 0.1, "altup_correct_coef.weight": 0.1}
        path = self.write(tiny_models.gemma3n(), calm)
        self.check(path, 20)
        args = ["-m", path, "-p", "a", "-n", 8, "-no-cnv", "-c", 256, "-t", 1, "--temp", 0]
        on = must_run("llama-completion", [*args, "-fa", "on"], EIGHT)
        self.assertIn("decoded for an attention that the host computes", on.stderr)
        self.assertGreater(on.stats["operations"]["FLASH_ATTN_EXT"]["on_host_cpu"], 2 * 8)
        auto = run_tool("llama-completion", [*args, "-fa", "auto"], EIGHT)
        self.assertEqual(auto.returncode, 0)
        self.assertIn("not active", auto.stderr)
        self.assertEqual(auto.stdout, run_tool("llama-completion", [*args, "-fa", "off"], F16).stdout)

    def test_latent_attention(self):
        self.check(self.write(tiny_models.mla(), {"attn_q_b.weight": 2.0, "attn_k_b.weight": 2.0}), 3)


if __name__ == "__main__":
    unittest.main()
