"""The tools that every other test here leans on: they must see a run, its figures and its failures."""

import unittest

import llama_tools
from llama_tools import F16, VARVE

SMOLLM2 = llama_tools.MODELS["smollm2"]
SHORT = ["-m", SMOLLM2, "-p", "The capital of France is", "-n", 4, "--temp", 0, "-no-cnv", "-c", 512, "-lv", 4]


class RunnerTest(unittest.TestCase):
    def test_f16_run_has_figures(self):
        run = llama_tools.must_run("llama-completion", SHORT, F16)
        self.assertIn("Paris", run.stdout)
        # 30 layers, 3 KV heads of 64, K and V, 2 bytes, 512 cells.
        self.assertEqual(run.kv_bytes, 30 * 3 * 64 * 2 * 2 * 512)
        self.assertGreater(run.peak_rss_bytes, 100 << 20)
        self.assertEqual(run.stats, {})

    def test_varve_run_is_on_the_plugin(self):
        run = llama_tools.must_run("llama-completion", SHORT, VARVE)
        self.assertIn("Paris", run.stdout)
        (cache,) = run.stats["caches"]
        self.assertEqual((cache["layers"], cache["plain_layers"]), (30, 0))
        self.assertGreater(cache["tokens"], 5)
        self.assertGreater(run.stats["operations"]["FLASH_ATTN_EXT"]["on_codes"], 0)

    def test_failure_is_reported(self):
        with self.assertRaisesRegex(llama_tools.ToolError, "llama-completion"):
            llama_tools.must_run("llama-completion", ["-m", "no-such-model.gguf", "-p", "x"], F16)

    def test_a_run_without_the_plugin_is_not_taken_for_one_with_it(self):
        with self.assertRaisesRegex(llama_tools.ToolError, "held no layer"):
            llama_tools.must_run("llama-completion", [*SHORT, "-ngl", 0], VARVE)


if __name__ == "__main__":
    unittest.main()
