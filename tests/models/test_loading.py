"""Loading the plugin into stock llama.cpp: what it says, and that the host goes on when it steps aside."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import llama_tools
from llama_tools import F16, LLAMA_BIN, PLUGIN, VARVE, Cache, run_tool

SMOLLM2 = llama_tools.MODELS["smollm2"]
SHORT = ["-m", SMOLLM2, "-p", "The capital of France is", "-n", 4, "--temp", 0, "-no-cnv", "-c", 512, "-t", 1, "--no-warmup"]


def varve_lines(run):
    return [line for line in run.stderr.splitlines() if line.startswith("varve: ")]


class Settings(unittest.TestCase):
    def check_refused(self, variable, value, *words):
        # Without --device the host has no need of the plugin and keeps its own cache.
        run = run_tool("llama-completion", SHORT, F16, env={"GGML_BACKEND_PATH": str(PLUGIN), variable: value})
        listing = run_tool("llama-completion", ["--list-devices"], F16,
                           env={"GGML_BACKEND_PATH": str(PLUGIN), variable: value})
        self.assertEqual(run.returncode, 0)
        self.assertIn("Paris", run.stdout)
        self.assertEqual(listing.returncode, 0)
        self.assertNotIn("VARVE:", listing.stdout)
        (line,) = varve_lines(listing)
        for word in (variable, value, *words):
            self.assertIn(word, line)

    def test_bad_values_are_refused_in_one_line(self):
        self.check_refused("VARVE_METHOD", "no-such-method", "age_tiered", "uniform", "fp16")
        self.check_refused("VARVE_SET", "age_mid_boundry=3", "age_mid_boundary")
        self.check_refused("VARVE_SET", "age_mid_boundary=many")
        self.check_refused("VARVE_PRESET", "tiny", "safe", "balanced", "small", "seed")

    def test_good_values_are_used(self):
        for cache in (Cache(plugin=True, method="uniform"), Cache(plugin=True, settings="sink_tokens=0")):
            run = llama_tools.must_run("llama-completion", SHORT, cache)
            self.assertIn("Paris", run.stdout)
            self.assertIn(cache.method or "age_tiered", varve_lines(run)[0])


class Paths(unittest.TestCase):
    def test_missing_file(self):
        run = run_tool("llama-completion", SHORT, F16, env={"GGML_BACKEND_PATH": "/no/such/libggml-varve.so"})
        self.assertEqual(run.returncode, 0)
        self.assertIn("Paris", run.stdout)

    def test_not_a_library(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(b"not a library")
            file.flush()
            run = run_tool("llama-completion", ["--list-devices"], F16, env={"GGML_BACKEND_PATH": file.name})
        self.assertEqual(run.returncode, 0)
        self.assertNotIn("VARVE", run.stdout)

    def test_relative_path_from_another_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(PLUGIN, pathlib.Path(folder, "plugin.so"))
            run = run_tool("llama-completion", [*SHORT, "--device", "VARVE"], F16,
                           env={"GGML_BACKEND_PATH": "./plugin.so"}, cwd=folder)
        self.assertEqual(run.returncode, 0)
        self.assertIn("active", varve_lines(run)[0])

    def test_another_api_version_is_refused_by_the_host(self):
        # The registration's first field is the API version; a shim returns one with another number.
        compiler = shutil.which("cc") or shutil.which("gcc")
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "shim.c")
            source.write_text(
                "#include <dlfcn.h>\n#include <string.h>\n#include <stdlib.h>\n"
                "void *ggml_backend_init(void) {\n"
                f'  void *library = dlopen("{PLUGIN}", RTLD_NOW);\n'
                '  void *(*init)(void) = (void *(*)(void))dlsym(library, "ggml_backend_init");\n'
                "  int *copy = malloc(256);\n  memcpy(copy, init(), 48);\n  *copy += 1;\n  return copy;\n}\n"
            )
            shim = pathlib.Path(folder, "shim.so")
            subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
            run = run_tool("llama-completion", ["--list-devices"], F16, env={"GGML_BACKEND_PATH": str(shim)})
            self.assertEqual(run.returncode, 0)
            self.assertNotIn("VARVE:", run.stdout)


class SteppingAside(unittest.TestCase):
    """Options that the codes cannot serve: right answers, and one line that says why."""

    def check(self, args, *words, held=False, cache=VARVE):
        run = run_tool("llama-completion", [*SHORT, *args], cache)
        self.assertEqual(run.returncode, 0, run.stderr[-1500:])
        self.assertIn("Paris", run.stdout)
        said = " ".join(varve_lines(run))
        for word in words:
            self.assertIn(word, said)
        caches = run.stats.get("caches", [])
        self.assertEqual(any(c["layers"] > c["plain_layers"] for c in caches), held)
        return run

    def test_flash_attention_off(self):
        self.check(["-fa", "off"], "not active", "plain storage", "flash attention is off")

    def test_flash_attention_auto_is_on(self):
        self.check(["-fa", "auto"], "active", held=True)

    def test_declared_types(self):
        for k, v in (("q8_0", "q4_0"), ("f16", "q8_0"), ("f32", "f32")):
            with self.subTest(k=k, v=v):
                types = ["--device", "VARVE", "-ctk", k, "-ctv", v, "-fa", "on"]
                cache = Cache(plugin=True, label="declared")
                run = run_tool("llama-completion", [*SHORT, *types], _DeclaredByArguments(cache))
                self.assertEqual(run.returncode, 0, run.stderr[-1500:])
                stock = run_tool("llama-completion", [*SHORT, "-ctk", k, "-ctv", v, "-fa", "on"], _DeclaredByArguments(F16))
                self.assertEqual(run.stdout, stock.stdout)
                self.assertIn("declared type", " ".join(varve_lines(run)))

    def test_bf16_is_packed(self):
        cache = Cache(stock_type="bf16", plugin=True)
        self.check([], "active", held=True, cache=cache)

    def test_the_cache_stays_on_the_cpu(self):
        self.check(["-ngl", 0], "held no KV cache")
        self.check(["-nkvo"], "held no KV cache")

    def test_some_layers_only(self):
        run = self.check(["-ngl", 10], "9 of 9 layers packed", held=True)
        self.assertEqual(run.stats["caches"][0]["layers"], 9)


class _DeclaredByArguments:
    """A cache whose type arguments the caller gives."""

    def __init__(self, cache):
        self.cache = cache
        self.plugin = cache.plugin
        self.name = cache.name

    def args(self):
        return []

    def env(self):
        return self.cache.env()


class Figures(unittest.TestCase):
    def test_on_signal_and_every_second(self):
        for env, send in (({}, True), ({"VARVE_STATS": "1"}, False)):
            with self.subTest(env=env), tempfile.TemporaryFile() as err:
                command = [str(LLAMA_BIN / "llama-completion"), *map(str, SHORT), *VARVE.args(), "--ignore-eos"]
                command[command.index("-n") + 1] = "400"
                process = subprocess.Popen(command, env={**VARVE.env(), **env}, stdin=subprocess.DEVNULL,
                                           stdout=subprocess.DEVNULL, stderr=err)
                deadline = time.monotonic() + 120
                said = ""
                try:
                    while time.monotonic() < deadline and not re.search(r"varve: method .*MiB held", said):
                        time.sleep(0.5)
                        self.assertIsNone(process.poll())
                        if send and "varve: active" in said:
                            process.send_signal(signal.SIGUSR1)
                        said = os.pread(err.fileno(), 1 << 20, 0).decode(errors="replace")
                finally:
                    process.kill()
                    process.wait()
                self.assertRegex(said, r"varve: method age_tiered, 30 layers, \d+ tokens .*bits an element")

    def test_a_bad_period_is_told(self):
        run = run_tool("llama-completion", SHORT, VARVE, env={"VARVE_STATS": "often"})
        self.assertEqual(run.returncode, 0)
        self.assertIn("VARVE_STATS=often", " ".join(varve_lines(run)))


if __name__ == "__main__":
    unittest.main()
