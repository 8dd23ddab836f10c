"""Commands on real models: their figures hold together and agree with each other."""

import json
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

import report_page
import tiny_gguf
import tiny_models
from varve_cli import GEMMA, INTERRUPTED, MODEL, NOTHING_FITS, PROGRAM, TEXT, CliTest, needs, run

SHORT = ["--ctx", "256", "--chunks", "1", "--threads", "1"]


class WithText(CliTest):
    @classmethod
    def setUpClass(cls):
        needs(MODEL, TEXT)
        cls.folder = tempfile.TemporaryDirectory()
        cls.text = pathlib.Path(cls.folder.name) / "text.txt"
        cls.text.write_bytes(TEXT.read_bytes()[:30000])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()


class Estimate(CliTest):
    def test_stock_caches_are_what_llama_allots(self):
        needs(MODEL)
        # After a prompt its last batch would still be in finer tiers.
        result = run("estimate", "--model", MODEL, "--ctx", "4k", "--decoded", "1k", "--json")
        value = self.check_json("estimate", result)
        by_name = {method["name"]: method for method in value["methods"]}
        elements = 30 * 2 * 4096 * 3 * 64  # layers, K and V, cells, KV heads, head_dim
        self.assertEqual(by_name["f16"]["bytes"], 2 * elements)
        self.assertEqual(by_name["q8_0"]["bytes"], elements * 34 // 32)
        self.assertEqual(by_name["q4_0"]["bytes"], elements * 18 // 32)
        self.assertLess(by_name["small"]["bytes"], by_name["balanced"]["bytes"])
        self.assertLess(by_name["balanced"]["bytes"], by_name["safe"]["bytes"])
        self.assertLess(by_name["safe"]["bytes"], by_name["q4_0"]["bytes"])
        self.assertIn("unsupported_reason", by_name["amc"])

    def test_sliding_window(self):
        needs(GEMMA)
        value = self.check_json("estimate", run("estimate", "--model", GEMMA, "--ctx", "4k", "--json"))
        layers = value["model"]["kv_layers"]
        self.assertEqual(len(layers), 18)
        self.assertEqual(sum(layer["is_sliding"] for layer in layers), 15)
        self.assertEqual({layer["n_cells"] for layer in layers if not layer["is_sliding"]}, {4096})
        self.assertLess(max(layer["n_cells"] for layer in layers if layer["is_sliding"]), 2048)

    def test_latent_attention(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "mla.gguf"
            tiny_gguf.write(model, *tiny_models.mla(n_layers=3, kv_lora_rank=128, n_rope_dims=32))
            value = self.check_json("estimate", run("estimate", "--model", model, "--ctx", "1k", "--json"))
        self.assertEqual(value["model"]["kind"], "MLA")
        self.assertEqual(value["f16_bytes"], 3 * 1024 * (128 + 32) * 2)
        by_name = {method["name"]: method for method in value["methods"]}
        self.assertEqual(by_name["q8_0"]["bytes"], value["f16_bytes"] * 17 // 32)
        self.assertLess(by_name["balanced"]["bytes"], by_name["q8_0"]["bytes"])

    def test_every_kind_of_cache_is_what_is_then_held(self):
        """Latent attention, sliding windows (cells are written over), odd head sizes; a prompt in batches, then one token at a time."""
        needs(TEXT)
        shapes = {"mla": tiny_models.mla(), "gemma2": tiny_models.gemma2(), "gpt_oss": tiny_models.gpt_oss(), "phi2": tiny_models.phi2()}
        with tempfile.TemporaryDirectory() as folder:
            prompt = pathlib.Path(folder) / "prompt"
            prompt.write_bytes(TEXT.read_bytes()[:1500])
            for name, shape in shapes.items():
                with self.subTest(name):
                    model = pathlib.Path(folder) / f"{name}.gguf"
                    tiny_gguf.write(model, *shape)
                    # Random weights have keys that the limit would hold back.
                    common = ["--model", model, "--set", "key_error_limit=0", "--json"]
                    held = self.check_json("profile", run("profile", *common, "--method", "age_tiered", "--prompt-file", prompt,
                                                          "--max-tokens", 50, "--threads", 1))
                    n_decoded = held["n_generated_tokens"] - 1
                    n_tokens = held["n_prompt_tokens"] + n_decoded
                    said = self.check_json("estimate", run("estimate", *common, "--methods", "age_tiered", "--ctx", n_tokens,
                                                           "--tokens", n_tokens, "--decoded", n_decoded))["methods"][0]
                    self.assertLess(abs(said["bytes"] / held["summary"]["peak_memory_bytes"] - 1), 0.01)

    def test_part_of_the_context(self):
        needs(MODEL)
        arguments = ["estimate", "--model", MODEL, "--ctx", "4k", "--methods", "f16,balanced", "--json"]
        whole = self.check_json("estimate", run(*arguments))["methods"]
        part = self.check_json("estimate", run(*arguments, "--tokens", "1k"))["methods"]
        self.assertEqual(part[0]["bytes"], whole[0]["bytes"], "a stock cache is allotted whole")
        self.assertLess(part[1]["bytes"], whole[1]["bytes"] / 2)

    def test_table(self):
        needs(MODEL)
        result = run("estimate", "--model", MODEL)
        self.check_ok(result)
        self.check_table(result.stdout)


class Profile(WithText):
    def test_figures_hold_together_and_meet_the_estimate(self):
        for model, method in ((MODEL, "small"), (MODEL, "age_tiered"), (GEMMA, "balanced")):
            with self.subTest(model=model.name, method=method):
                needs(model)
                prompt = self.text.with_name("prompt.txt")
                prompt.write_bytes(TEXT.read_bytes()[:5000])
                value = self.check_json("profile", run("profile", "--model", model, "--method", method, "--prompt-file", prompt,
                                                       "--max-tokens", 4, "--threads", 1, "--json"))
                self.assertEqual(value["n_generated_tokens"], 4)
                n_tokens = value["n_prompt_tokens"] + 3
                self.assertGreater(n_tokens, 900)
                for layer in value["layers"]:
                    self.assertEqual(sum(layer["tier_tokens"].values()), layer["tokens"])
                    if layer["last_key_bits"] < 8:
                        self.assertGreater(layer["tier_tokens"]["mid"] + layer["tier_tokens"]["old"], 0, "no flag may do nothing")
                    self.assertGreater(layer["attend_seconds"], 0)
                held = value["summary"]["peak_memory_bytes"]
                self.assertEqual(held, sum(layer["peak_memory_bytes"] for layer in value["layers"]))
                estimate = self.check_json("estimate", run("estimate", "--model", model, "--ctx", n_tokens + 1, "--tokens", n_tokens, "--decoded", 3,
                                                           "--methods", method, "--measure", "--threads", 1, "--json"))["methods"][0]
                self.assertEqual(estimate["bytes"], estimate["most_bytes"], "measured, so there is one number")
                self.assertLess(abs(held / estimate["bytes"] - 1), 0.03)

    def test_layer_numbers_are_the_models(self):
        """Gemma's windowed layers and the others lie in two caches; ranges count the model's layers all the same."""
        needs(GEMMA)
        arguments = ["profile", "--model", GEMMA, "--prompt", "The lake froze early. " * 8, "--max-tokens", 1, "--threads", 1, "--json"]
        for layers in ("first2", "l5", "last1", "last3"):
            arguments += ["--set", f"{layers}.method=fp16"]
        value = self.check_json("profile", run(*arguments))
        exact = [layer["layer_index"] for layer in value["layers"] if layer["last_key_bits"] == 16]
        self.assertEqual(exact, [0, 1, 5, 15, 16, 17])

    def test_text_and_table(self):
        result = run("profile", "--model", MODEL, "--method", "q8_0", "--prompt", "The capital of France is", "--max-tokens", 4, "--threads", 1)
        self.check_ok(result)
        self.check_table(result.stdout.split("\n\n", 1)[1])
        self.assertIn("8.50 bits an element", result.stdout)

    def test_same_seed_same_text(self):
        arguments = ["profile", "--model", MODEL, "--method", "fp16", "--prompt", "Once", "--max-tokens", 8, "--temp", 1.5, "--json"]
        first, again, other = (json.loads(run(*arguments, "--seed", seed).stdout)["text"] for seed in (7, 7, 8))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)


class Compare(WithText):
    def test_quality_orders_as_bits_do(self):
        html = self.text.with_name("report.html")
        result = run("compare", "--model", MODEL, "--text", self.text, *SHORT, "--methods", "fp16,q8_0,q4_0,age_tiered,uniform:uniform_bits=2",
                     "--set", "sink_tokens=4", "--decode", 8, "--speed-runs", 1, "--error-layers", 2, "--html", html, "--json")
        value = self.check_json("compare", result)
        by_name = {method["name"]: method for method in value["methods"]}
        self.assertEqual(value["methods"][0]["name"], "f16")
        self.assertTrue(value["methods"][0]["reference"])
        kld = {name: method["kld"]["mean"] for name, method in by_name.items()}
        self.assertLess(kld["fp16"], 0.005)
        self.assertLess(kld["q8_0"], kld["q4_0"])
        self.assertLess(kld["age_tiered"], kld["uniform:uniform_bits=2"])
        for method in value["methods"]:
            self.assertLessEqual(method["kld"]["median"], method["kld"]["p99"])
            self.assertLessEqual(method["perplexity"]["low"], method["perplexity"]["value"])
            self.assertEqual(len(method["errors"]["layers"]), 2)
        errors = {name: method["errors"]["output"] for name, method in by_name.items()}
        self.assertLess(errors["f16"], 0.002)
        self.assertLess(errors["fp16"], 0.002)
        self.assertLess(errors["q8_0"], errors["q4_0"])
        self.assertAlmostEqual(by_name["q8_0"]["bits_per_element"], 8.5)
        self.assertLess(by_name["age_tiered"]["bits_per_element"], 10)
        page = html.read_text()
        for name in by_name:
            self.assertIn(name, page)
        self.assertNotRegex(page, r"(src|href)=", "self-contained")
        for width in (390, 1280):
            self.assertEqual(report_page.layout(page, width), {"width": width, "plots": 4, "faults": []})
        broken = page.replace(".narrow{display:block}", ".narrow{display:block;width:200px}.narrow text{font-size:30px}")
        self.assertNotEqual(report_page.layout(broken, 390)["faults"], [], "the check sees what is wrong")

    def test_tables(self):
        result = run("compare", "--model", MODEL, "--text", self.text, *SHORT, "--methods", "q8_0,balanced", "--decode", 0, "--error-layers", 1)
        self.check_ok(result)
        self.check_table(result.stdout)

    def test_goes_on_after_an_interruption(self):
        state = self.text.with_name("state.jsonl")
        arguments = ["compare", "--model", MODEL, "--text", self.text, "--ctx", "128", "--chunks", "3", "--methods", "q8_0", "--decode", 0,
                     "--error-layers", 0, "--state", state, "--threads", 1, "--json"]
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not (state.exists() and state.read_text().count("\n") >= 2):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, INTERRUPTED, errors)
        self.assertIn("finished chunks are kept", errors)
        pieces = state.read_text().count("\n") - 1
        self.assertGreaterEqual(pieces, 1)
        resumed = run(*arguments)
        self.assertIn(f"going on with {pieces} finished", resumed.stderr)
        value = self.check_json("compare", resumed)
        self.assertFalse(state.exists(), "removed when the comparison is done")
        fresh = self.check_json("compare", run(*arguments))
        self.assertEqual(value["methods"][1]["kld"], fresh["methods"][1]["kld"])

    def test_state_of_another_comparison_is_not_used(self):
        state = self.text.with_name("other.jsonl")
        state.write_text('{"comparison": 1}\n')
        result = run("compare", "--model", MODEL, "--text", self.text, *SHORT, "--methods", "q8_0", "--state", state)
        self.check_error(result, 2, state, "--fresh")


class Recommend(WithText):
    def test_more_memory_better_quality(self):
        def chosen(ram):
            value = self.check_json("recommend", run("recommend", "--model", MODEL, "--ctx", "8k", "--ram", ram, "--threads", 1, "--json"))
            return value["recommendation"]["name"]

        order = ["f16", "q8_0", "safe", "balanced", "small"]
        ample = self.check_json("recommend", run("recommend", "--model", MODEL, "--ctx", "8k", "--ram", "1T", "--json"))["candidates"]
        # Too little for a cache of llama.cpp's own, so that the others' keys are measured.
        totals = self.check_json("recommend", run("recommend", "--model", MODEL, "--ctx", "8k", "--ram", ample[1]["total_bytes"] - 1,
                                                  "--threads", 1, "--json"))["candidates"]
        self.assertTrue(all(candidate["kv_bytes_known"] for candidate in totals))
        self.assertEqual([candidate["name"] for candidate in totals], order)
        for candidate in totals:
            self.assertEqual(chosen(str(candidate["total_bytes"])), candidate["name"])

    def test_nothing_fits(self):
        result = run("recommend", "--model", MODEL, "--ctx", "8k", "--ram", "200M", "--threads", 1, "--json")
        value = self.check_json("recommend", result, NOTHING_FITS)
        self.assertIsNone(value["recommendation"])
        longest = value["advice"]["longest_ctx"]
        self.assertIn("nothing fits into 200 MiB", result.stderr)
        self.assertGreater(longest, 0)
        again = self.check_json("recommend", run("recommend", "--model", MODEL, "--ctx", longest, "--ram", "200M", "--threads", 1, "--json"))
        self.assertEqual(again["recommendation"]["name"], "small")

    def test_weights_do_not_fit(self):
        result = run("recommend", "--model", MODEL, "--ctx", "1k", "--ram", "50M")
        self.assertEqual(result.returncode, NOTHING_FITS)
        self.assertIn("the weights and llama.cpp's scratch alone", result.stderr)

    def test_measures_on_a_text(self):
        short = self.text.with_name("short.txt")
        short.write_bytes(TEXT.read_bytes()[:1200])
        value = self.check_json("recommend", run("recommend", "--model", MODEL, "--ctx", "2k", "--ram", "1G", "--text", short, "--threads", 1, "--json"))
        klds = [candidate["kld"] for candidate in value["candidates"]]
        self.assertEqual(klds[0], 0)
        self.assertTrue(all(0 < kld < 0.2 for kld in klds[1:]), klds)


class Layers(WithText):
    def test_sweep(self):
        result = run("layers", "--model", MODEL, "--text", self.text, "--ctx", "96", "--method", "uniform", "--set", "uniform_bits=2",
                     "--protect", "uniform_bits=8", "--threads", 1, "--json")
        value = self.check_json("layers", result)
        self.assertEqual([layer["layer"] for layer in value["layers"]], list(range(30)))
        self.assertLess(value["noise_kld"], 0.005)
        self.assertGreater(value["all_layers_kld"], max(layer["kld"] for layer in value["layers"]))
        if value["proposal"]:
            self.assertLess(value["proposal"]["kld"], value["all_layers_kld"])
            self.assertGreater(value["proposal"]["bits_per_element"], value["proposal"]["bits_per_element_before"])
            self.assertTrue(re.search(r"l\d+\.uniform_bits=8", value["proposal"]["settings"]))


if __name__ == "__main__":
    unittest.main()
