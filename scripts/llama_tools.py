"""Runs stock llama.cpp's programs with and without the plugin, and reads the figures they print. Standard library only.

Shared by the demo, the benchmarks and tests/models. Environment: VARVE_CACHE_DIR (llama.cpp, models, texts),
VARVE_BUILD_DIR (where lib/libggml-varve.so is; default build/release).
"""

import dataclasses
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

TREE = pathlib.Path(__file__).resolve().parent.parent
CACHE_DIR = pathlib.Path(os.environ.get("VARVE_CACHE_DIR") or pathlib.Path.home() / ".cache" / "varve")
BUILD_DIR = pathlib.Path(os.environ.get("VARVE_BUILD_DIR") or TREE / "build" / "release")
LLAMA_BIN = CACHE_DIR / "llama.cpp" / "bin"
PLUGIN = BUILD_DIR / "lib" / "libggml-varve.so"
HANDBOOK = CACHE_DIR / "texts" / "handbook.txt"
MODELS = {
    "smollm2": CACHE_DIR / "models" / "smollm2-135m-q4_1.gguf",
    "gemma": CACHE_DIR / "models" / "gemma3-270m-q4_k_m.gguf",
    "qwen": CACHE_DIR / "models" / "qwen2.5-coder-0.5b-q4_k_m.gguf",
}


@dataclasses.dataclass(frozen=True)
class Cache:
    """How the KV cache is held: a stock type, or the plugin with a method and settings ("" = its defaults)."""

    stock_type: str = "f16"
    plugin: bool = False
    method: str = ""
    preset: str = ""
    settings: str = ""
    label: str = ""
    isa: str = ""  # caps the plugin's kernels

    @property
    def name(self):
        if self.label:
            return self.label
        if not self.plugin:
            return f"stock {self.stock_type}"
        return " ".join(["varve", *filter(None, [self.method, self.preset, self.settings])])

    def args(self):
        args = ["-ctk", self.stock_type, "-ctv", self.stock_type]
        return args + (["--device", "VARVE"] if self.plugin else [])

    def env(self):
        """The environment a program runs in: nothing of the caller's own settings leaks in."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("VARVE_", "GGML_", "LLAMA_ARG_"))}
        if "VARVE_ISA" in os.environ:
            env["VARVE_ISA"] = os.environ["VARVE_ISA"]
        if self.isa:
            env["VARVE_ISA"] = self.isa
        if self.plugin:
            env["GGML_BACKEND_PATH"] = str(PLUGIN)
            pairs = {"VARVE_METHOD": self.method, "VARVE_PRESET": self.preset, "VARVE_SET": self.settings}
            env.update({key: value for key, value in pairs.items() if value})
        return env


F16 = Cache("f16")
Q8_0 = Cache("q8_0")
Q4_0 = Cache("q4_0")
VARVE = Cache(plugin=True)


@dataclasses.dataclass
class Run:
    """What one program run left behind. kv_bytes: held by the KV cache at the end, as its owner reports it."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    peak_rss_bytes: int
    stats: dict

    def line(self, pattern):
        match = re.search(pattern, self.stderr + self.stdout)
        return match.group(0) if match else ""

    def number(self, pattern):
        """The first group of the pattern in what was printed, as a number; None when it is not there."""
        match = re.search(pattern, self.stderr + self.stdout)
        return float(match.group(1)) if match else None

    @property
    def kv_bytes(self):
        if self.stats:
            return sum(c["packed_bytes"] + c["plain_bytes"] for c in self.stats["caches"])
        sizes = re.findall(r"KV buffer size =\s+([\d.]+) MiB", self.stderr)
        return int(sum(map(float, sizes)) * 2**20) if sizes else None

    @property
    def bits(self):
        """Bits an element of what the plugin held; None for a stock cache."""
        return 16 * self.kv_bytes / sum(c["f16_bytes"] for c in self.stats["caches"]) if self.stats else None


def run_tool(tool, args, cache=F16, timeout=900, env=None, cwd=None):
    """Runs bin/<tool> with the cache's own arguments appended, and measures it."""
    with tempfile.TemporaryDirectory() as scratch:
        stats_path = pathlib.Path(scratch, "stats.json")
        full_env = {**cache.env(), "VARVE_STATS_FILE": str(stats_path), **(env or {})}
        command = [str(LLAMA_BIN / tool), *map(str, args), *cache.args()]
        out_path, err_path = pathlib.Path(scratch, "out"), pathlib.Path(scratch, "err")
        started = time.monotonic()
        with open(out_path, "wb") as out, open(err_path, "wb") as err:
            process = subprocess.Popen(
                command, env=full_env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
            timer = threading.Timer(timeout, process.kill)
            timer.start()
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:
                process.kill()
                raise
            finally:
                timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        return Run(
            returncode=process.returncode,
            stdout=out_path.read_text(errors="replace"),
            stderr=err_path.read_text(errors="replace"),
            seconds=time.monotonic() - started,
            peak_rss_bytes=usage.ru_maxrss * 1024,
            stats=json.loads(stats_path.read_text()) if stats_path.is_file() else {},
        )


class ToolError(RuntimeError):
    pass


def must_run(tool, args, cache=F16, **kwargs):
    """run_tool, and an error with the end of the log unless it went well and the plugin did hold the cache."""
    run = run_tool(tool, args, cache, **kwargs)
    if run.returncode != 0:
        raise ToolError(f"{tool} ({cache.name}) ended with {run.returncode}:\n{run.stderr[-2000:]}")
    if cache.plugin and not any(c["layers"] > c["plain_layers"] for c in run.stats.get("caches", [])):
        raise ToolError(f"{tool} ({cache.name}): the plugin held no layer of the cache:\n{run.stderr[-2000:]}")
    return run


class Perplexity:
    """llama-perplexity against the logits of the f16 cache, which are made once."""

    def __init__(self, model, text, n_ctx, chunks, threads, ubatch=64):
        self.common = ["-m", model, "-f", text, "-c", n_ctx, "--chunks", chunks, "-t", threads]
        self.common += ["-ub", ubatch, "-fa", "on"]
        self.scratch = tempfile.TemporaryDirectory()
        self.logits = pathlib.Path(self.scratch.name, "f16.kld")
        self.reference_perplexity = None

    def __enter__(self):
        pattern = {"perplexity": r"Final estimate: PPL = ([\d.]+)"}
        _, figures = self._figures(["--save-all-logits", self.logits], F16, pattern)
        self.reference_perplexity = figures["perplexity"]
        return self

    def __exit__(self, *exc):
        self.scratch.cleanup()

    def measure(self, cache):
        """{perplexity, kld, kld_p99, same_top_percent, bits}; bits as Run.bits."""
        patterns = {
            "perplexity": r"Mean PPL\(Q\)\s*:\s*([\d.einf+-]+)",
            "kld": r"Mean\s+KLD:\s*(-?[\d.einf+-]+)",
            "kld_p99": r"99\.0%\s+KLD:\s*(-?[\d.einf+-]+)",
            "same_top_percent": r"Same top p:\s*([\d.]+)",
        }
        run, figures = self._figures(["--kl-divergence", "--kl-divergence-base", self.logits], cache, patterns)
        return figures | {"bits": run.bits}

    def _figures(self, args, cache, patterns):
        # Why again: llama.cpp prints from a thread of its own, and its programs may end before that has printed the last lines.
        for _ in range(5):
            run = must_run("llama-perplexity", [*self.common, *args], cache)
            figures = {key: run.number(pattern) for key, pattern in patterns.items()}
            missing = [key for key, value in figures.items() if value is None]
            if not missing:
                return run, figures
        raise ToolError(f"llama-perplexity ({cache.name}) printed no {', '.join(missing)}:\n{run.stderr[-1000:]}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """llama-server as a context manager, ready when entered."""

    def __init__(self, args, cache=F16, ready_seconds=120):
        self.args = list(map(str, args))
        self.cache = cache
        self.ready_seconds = ready_seconds
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.scratch = tempfile.TemporaryDirectory()
        self.log_path = pathlib.Path(self.scratch.name, "log")
        self.stats_path = pathlib.Path(self.scratch.name, "stats.json")
        self.process = None

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def __enter__(self):
        command = [str(LLAMA_BIN / "llama-server"), "--port", str(self.port), "--host", "127.0.0.1"]
        command += [*self.args, *self.cache.args()]
        env = {**self.cache.env(), "VARVE_STATS_FILE": str(self.stats_path)}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + self.ready_seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.request("/health", timeout=2)
                return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        tail = self.log[-2000:]
        self.__exit__()
        raise ToolError(f"llama-server ({self.cache.name}) did not become ready:\n{tail}")

    def __exit__(self, *exc):
        self.stop()
        self.scratch.cleanup()

    def stop(self):
        """Ends the server as a user would; its exit status (0 when it went in peace)."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    @property
    def alive(self):
        return self.process.poll() is None

    def stats(self):
        return json.loads(self.stats_path.read_text()) if self.stats_path.is_file() else {}

    def request(self, path, body=None, timeout=900):
        """GET, or POST of a JSON body; the answer parsed."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read() or b"null")

    def complete(self, prompt, n_predict=16, **extra):
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "seed": 1, "cache_prompt": True, **extra}
        return self.request("/completion", body)
