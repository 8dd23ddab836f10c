"""Gemma 3 (sliding window, head size 256, one KV head) and Qwen2.5 (large K bias) on the plugin."""

import json
import tempfile
import unittest

import llama_tools
from llama_tools import F16, Q8_0, VARVE, Cache, Perplexity, Server, must_run
from scenarios import distance, distribution, next_token, text

GEMMA = llama_tools.MODELS["gemma"]
QWEN = llama_tools.MODELS["qwen"]
GATE_TIERS = Cache(plugin=True, settings="age_recent_boundary=64,age_mid_boundary=256")
UNIFORM_8 = Cache(plugin=True, method="uniform", settings="uniform_bits=8")


class Quality(unittest.TestCase):
    """Prose, -c 1024 -ub 64. Stock q4_0 has KLD 1.47 on Qwen and 0.096 on Gemma."""

    def check(self, model, bound):
        with Perplexity(model, llama_tools.HANDBOOK, 1024, 1, 1) as perplexity:
            tiers = perplexity.measure(GATE_TIERS)
            eight = perplexity.measure(UNIFORM_8)
            q8_0 = perplexity.measure(Q8_0)
        figures = {"tiers": tiers, "uniform 8": eight, "q8_0": q8_0}
        print(figures)
        self.assertLess(tiers["kld"], bound, figures)
        self.assertLess(eight["kld"], 1.3 * q8_0["kld"], figures)

    def test_qwen(self):
        self.check(QWEN, 0.018)

    def test_gemma(self):
        self.check(GEMMA, 0.030)


class GemmaWindow(unittest.TestCase):
    """Past the sliding window of 512 tokens: what the stock cache recalls, the plugin recalls."""

    def prompt(self, words_after):
        needle = "The password of the harbour gate is BLUEBIRD7."
        return f"{text(60)}\n{needle}\n{text(words_after, 500)}\nQuestion: what is the password of the harbour gate?\nThe password is"

    def recalls(self, server, words_after):
        return "BLUEBIRD7" in server.complete(self.prompt(words_after), 8)["content"]

    def test_recall(self):
        for ubatch, full in ((64, False), (512, False), (512, True)):
            args = ["-m", GEMMA, "-c", 2560, "-np", 1, "-t", 1, "-fa", "on", "-ub", ubatch, "--cache-ram", 0]
            args += ["--swa-full"] if full else []
            found = {}
            for cache in (F16, VARVE):
                with Server(args, cache) as server:
                    found[cache.name] = [self.recalls(server, words) for words in (50, 450, 1200)]
            with self.subTest(ubatch=ubatch, full=full):
                for stock, varve in zip(*found.values()):
                    self.assertTrue(varve or not stock, found)
                self.assertIn(True, found[F16.name])

    def test_context_shift_and_a_new_chat(self):
        args = ["-m", GEMMA, "-c", 768, "-np", 1, "-t", 1, "-fa", "on", "--context-shift", "--cache-ram", 0]
        with Server(args, VARVE) as server:
            fresh = distribution(next_token(server, text(40)))
            long = server.complete(text(200, 900), 640, ignore_eos=True)
            self.assertEqual(long["tokens_predicted"], 640)
            self.assertGreater(long["tokens_evaluated"] + 640, 800)
            again = distribution(next_token(server, text(40)))
            self.assertEqual(server.stop(), 0)
        self.assertLess(distance(fresh, again), 0.05)

    def test_saved_slot_over_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            args = ["-m", GEMMA, "-c", 2048, "-np", 1, "-t", 1, "-fa", "on", "--slot-save-path", folder + "/", "--cache-ram", 0]
            reused = {}
            for cache in (F16, VARVE):
                with Server(args, cache) as server:
                    before = next_token(server, text(500))
                    server.request("/slots/0?action=save", {"filename": "slot"})
                with Server(args, cache) as server:
                    server.request("/slots/0?action=restore", {"filename": "slot"})
                    after = next_token(server, text(500))
                reused[cache.name] = after["timings"]["cache_n"]
                self.assertLess(distance(distribution(before), distribution(after)), 0.12)
            # Whatever stock llama.cpp can reuse of a sliding window after a restore, the plugin can.
            self.assertEqual(*reused.values())


class ToolArguments(unittest.TestCase):
    """JSON arguments over a long shared prefix: the preset called safe passes as often as f16 does."""

    def pass_rate(self, cache):
        example = 'Plan {days} days in {city}.\nCall: {{"city": "{city}", "days": {days}}}\n'
        prefix = text(700) + "\n" + "".join(
            example.format(city=city, days=days) for city, days in (("Rome", 3), ("Oslo", 5), ("Lima", 2))
        )
        passed = 0
        with Server(["-m", QWEN, "-c", 2048, "-np", 1, "-t", 1, "-fa", "on", "--cache-ram", 0], cache) as server:
            cities = ["Paris", "Cairo", "Quito", "Delhi", "Seoul", "Turin", "Porto", "Kyoto", "Perth", "Miami"]
            for days, city in enumerate(cities, 1):
                prompt = f"{prefix}Plan {days} days in {city}.\nCall:"
                content = server.complete(prompt, 24)["content"]
                try:
                    call = json.loads(content.strip().splitlines()[0])
                    passed += call == {"city": city, "days": days}
                except (ValueError, IndexError):
                    pass
        return passed

    def test_pass_rate(self):
        stock = self.pass_rate(F16)
        safe = self.pass_rate(Cache(plugin=True, preset="safe"))
        print(f"f16 {stock} of 10, safe {safe} of 10")
        self.assertGreaterEqual(stock, 5)
        self.assertGreaterEqual(safe, stock - 1)


class Programs(unittest.TestCase):
    def test_completion_with_both_models(self):
        # What both say with stock's f16 cache: Gemma 270M goes in circles, Qwen knows.
        for model, words in ((GEMMA, "is the capital of the country"), (QWEN, "is Paris")):
            args = ["-m", model, "-p", "The capital of France is", "-n", 6, "--temp", 0, "-no-cnv", "-c", 1024, "-t", 1]
            self.assertIn(words, must_run("llama-completion", args, VARVE).stdout)


if __name__ == "__main__":
    unittest.main()
