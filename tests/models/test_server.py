"""llama-server on the plugin: slots, prefix hits, saved slots, shifts, drafts, cancelled requests."""

import concurrent.futures
import pathlib
import socket
import json
import tempfile
import unittest

import llama_tools
from llama_tools import F16, VARVE, Cache, Server
from scenarios import SERVER, SMOLLM2, distance, distribution, next_token, text

EXACT = Cache(plugin=True, method="fp16")
# Prompts of 60 to 260 tokens, none a prefix of another.
PROMPTS = [text(n, skip) for n, skip in ((40, 300), (90, 1200), (140, 2600), (180, 4100))]
# f16 against f16 with another attention code: 0.02 was seen; a wrong cell or a foreign sequence gives 0.3 and more.
CLOSE = 0.12


def reference(prompts):
    with Server([*SERVER, "-c", 2048, "-np", 1, "--cache-ram", 0], F16) as server:
        return [distribution(next_token(server, prompt)) for prompt in prompts]


class Slots(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = reference(PROMPTS)

    def check_four(self, *args):
        with Server([*SERVER, "-c", 2048, "-np", 4, *args], VARVE) as server:
            for _ in range(2):  # the second round meets the cells of the first
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    answers = list(pool.map(lambda prompt: next_token(server, prompt), PROMPTS))
                for answer, expected in zip(answers, self.expected):
                    self.assertLess(distance(distribution(answer), expected), CLOSE)
            # Long outputs side by side, then the same question again.
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda prompt: server.complete(prompt, 40), PROMPTS))
            again = next_token(server, PROMPTS[2], cache_prompt=False)
            self.assertLess(distance(distribution(again), self.expected[2]), CLOSE)
            self.assertEqual(server.stop(), 0)
            (cache,) = server.stats()["caches"]
        self.assertEqual(cache["plain_layers"], 0)
        return cache

    def test_unified(self):
        self.assertEqual(self.check_four("--kv-unified")["streams"], 1)

    def test_split(self):
        self.assertEqual(self.check_four("--no-kv-unified")["streams"], 4)

    def test_several_answers_to_one_prompt(self):
        """n > 1 copies a sequence: a stream copy when split."""
        for flag in ("--kv-unified", "--no-kv-unified"):
            with self.subTest(flag), Server([*SERVER, "-c", 2048, "-np", 3, flag], VARVE) as server:
                body = {"prompt": PROMPTS[1], "n_predict": 1, "n_cmpl": 3, "temperature": 0, "n_probs": 20}
                answers = server.request("/completion", body)
                self.assertEqual(len(answers), 3)
                for answer in answers:
                    self.assertLess(distance(distribution(answer), self.expected[1]), CLOSE)
                self.assertTrue(server.alive)


class PrefixHits(unittest.TestCase):
    def test_the_same_request_five_times(self):
        for ubatch in (16, 512):
            with self.subTest(ubatch=ubatch):
                with Server([*SERVER, "-c", 1024, "-np", 1, "-ub", ubatch, "--cache-ram", 0], VARVE) as server:
                    first, *hits = [next_token(server, PROMPTS[3]) for _ in range(5)]
                    misses = [next_token(server, PROMPTS[3], cache_prompt=False) for _ in range(2)]
                self.assertEqual(first["timings"]["cache_n"], 0)
                for hit in hits:
                    self.assertGreater(hit["timings"]["cache_n"], 100)
                    self.assertEqual(distribution(hit), distribution(hits[0]))
                self.assertEqual(distribution(misses[0]), distribution(misses[1]))
                self.assertLess(distance(distribution(hits[0]), distribution(misses[0])), 0.05)

    def test_prompts_leave_and_come_back(self):
        """--cache-ram: a slot's state is read, kept by the server, and written back."""
        with Server([*SERVER, "-c", 1024, "-np", 1, "--cache-ram", 512], VARVE) as server:
            before = [distribution(next_token(server, prompt)) for prompt in PROMPTS[1:]]
            back = [next_token(server, prompt) for prompt in PROMPTS[1:]]
            self.assertTrue(server.alive)
        for answer, expected in zip(back, before):
            self.assertLess(distance(distribution(answer), expected), CLOSE)
        self.assertTrue(any(answer["timings"]["cache_n"] > 50 for answer in back))


class SavedSlots(unittest.TestCase):
    def test_over_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            args = [*SERVER, "-c", 1024, "-np", 2, "--no-kv-unified", "--slot-save-path", folder + "/", "--cache-ram", 0]
            with Server(args, VARVE) as server:
                before = next_token(server, PROMPTS[3], id_slot=0)
                empty = server.request("/slots/1?action=save", {"filename": "empty"})
                self.assertEqual(empty["n_saved"], 0)
                saved = server.request("/slots/0?action=save", {"filename": "slot"})
            self.assertGreater(saved["n_saved"], 100)
            self.assertGreater(pathlib.Path(folder, "slot").stat().st_size, 1000)
            with Server(args, VARVE) as server:
                restored = server.request("/slots/0?action=restore", {"filename": "slot"})
                self.assertEqual(restored["n_restored"], saved["n_saved"])
                after = next_token(server, PROMPTS[3], id_slot=0)
                self.assertGreater(after["timings"]["cache_n"], saved["n_saved"] - 3)
                # A missing file is an error and leaves the slot as it is.
                with self.assertRaises(llama_tools.urllib.error.HTTPError):
                    server.request("/slots/0?action=restore", {"filename": "no-such-file"})
                self.assertTrue(server.alive)
                self.assertGreater(next_token(server, PROMPTS[3], id_slot=1)["tokens_evaluated"], 100)
            self.assertLess(distance(distribution(after), distribution(before)), CLOSE)

    def test_saved_file_is_stock(self):
        """A slot that the plugin saved can be read by a server without it, and the other way."""
        with tempfile.TemporaryDirectory() as folder:
            args = [*SERVER, "-c", 1024, "-np", 1, "--slot-save-path", folder + "/", "--cache-ram", 0]
            answers = {}
            for writer, reader in ((VARVE, F16), (F16, VARVE)):
                with Server(args, writer) as server:
                    answers["before"] = next_token(server, PROMPTS[2])
                    server.request("/slots/0?action=save", {"filename": "slot"})
                with Server(args, reader) as server:
                    server.request("/slots/0?action=restore", {"filename": "slot"})
                    answers["after"] = next_token(server, PROMPTS[2])
                self.assertGreater(answers["after"]["timings"]["cache_n"], 100)
                self.assertLess(distance(distribution(answers["after"]), distribution(answers["before"])), CLOSE)


class ContextShift(unittest.TestCase):
    def test_past_the_window_and_a_new_chat_after(self):
        args = [*SERVER, "-c", 256, "-np", 1, "--context-shift", "--cache-ram", 0]
        with Server(args, VARVE) as server:
            fresh = distribution(next_token(server, PROMPTS[0]))
            long = server.complete(PROMPTS[1], 600, ignore_eos=True)
            self.assertEqual(long["tokens_predicted"], 600)
            again = distribution(next_token(server, PROMPTS[0]))
            self.assertEqual(server.stop(), 0)
            stats = server.stats()
        self.assertGreater(stats["operations"]["ROPE"]["on_codes"], 30 * 3)
        self.assertEqual(stats["caches"][0]["plain_layers"], 0)
        self.assertLess(distance(again, fresh), 0.05)

    def test_the_shifted_cache_predicts_like_the_stock_one(self):
        """One shift in the prompt's continuation; both servers then see the same tokens."""
        answers = {}
        for cache in (F16, EXACT, VARVE):
            with Server([*SERVER, "-c", 256, "-np", 1, "--context-shift", "--cache-ram", 0], cache) as server:
                # A grammar that allows one word only makes the generated text the same everywhere.
                long = server.complete(PROMPTS[2], 200, grammar='root ::= " and the"+', n_probs=20)
                answers[cache.name] = [distribution(long, token) for token in range(180, 200)]
        stock, exact, varve = answers.values()
        self.assertEqual(len(stock), 20)
        mean = lambda other: sum(distance(a, b) for a, b in zip(stock, other)) / len(stock)
        self.assertLess(mean(exact), 0.05)
        self.assertLess(mean(varve), CLOSE)


class Drafts(unittest.TestCase):
    def test_the_same_model_as_draft(self):
        args = [*SERVER, "-c", 1024, "-np", 1, "--cache-ram", 0]
        with Server(args, VARVE) as server:
            plain = server.complete(PROMPTS[1], 48)
        draft = ["-md", SMOLLM2, "--spec-type", "draft-simple", "--spec-draft-n-max", 8, "-td", 1]
        with Server([*args, *draft, "-devd", "VARVE"], VARVE) as server:
            drafted = server.complete(PROMPTS[1], 48)
            self.assertTrue(server.alive)
        timings = drafted["timings"]
        self.assertGreater(timings["draft_n"], 20)
        self.assertGreater(timings["draft_n_accepted"], 0.7 * timings["draft_n"])
        self.assertEqual(plain["content"][:20], drafted["content"][:20])


class Cancelled(unittest.TestCase):
    def test_requests_that_are_dropped(self):
        with Server([*SERVER, "-c", 1024, "-np", 2, "--cache-ram", 0], VARVE) as server:
            before = distribution(next_token(server, PROMPTS[1], cache_prompt=False))
            for i in range(6):
                body = json.dumps({"prompt": PROMPTS[i % 4], "n_predict": 300, "stream": True, "ignore_eos": True})
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    head = "POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                    connection.settimeout(60)
                    connection.recv(1024)  # the answer has begun
            after = next_token(server, PROMPTS[1], cache_prompt=False)
            self.assertLess(distance(distribution(after), before), 0.05)
            self.assertTrue(server.alive)


if __name__ == "__main__":
    unittest.main()
