"""What `varve estimate --measure` says is what is then held: three models, the presets, several lengths."""

import pathlib
import tempfile
import unittest

from varve_cli import GEMMA, MODEL, QWEN, TEXT, CliTest, needs, run

CLOSE = 0.03
N_GENERATED = 3  # a prompt's last batch is demoted when the next token is written
BYTES_OF_TEXT = (6500, 8000)  # some 1,300 and 1,650 tokens; in shorter caches the part-filled pages of a layer can be 5 %


class Estimate(CliTest):
    def check_model(self, model):
        needs(model, TEXT)
        with tempfile.TemporaryDirectory() as folder:
            prompt = pathlib.Path(folder) / "prompt.txt"
            for size in BYTES_OF_TEXT:
                prompt.write_bytes(TEXT.read_bytes()[:size])
                for preset in ("safe", "balanced", "small"):
                    profile = self.check_json("profile", run("profile", "--model", model, "--method", preset, "--prompt-file", prompt,
                                                             "--max-tokens", N_GENERATED, "--threads", 1, "--json"))
                    n = profile["n_prompt_tokens"] + N_GENERATED - 1
                    estimate = self.check_json("estimate", run("estimate", "--model", model, "--ctx", n + 1, "--tokens", n, "--methods", preset,
                                                               "--measure", "--threads", 1, "--json"))["methods"][0]
                    held = profile["summary"]["peak_memory_bytes"]
                    print(f"{model.name} {preset} {n} tokens: {held} held, {100 * (estimate['bytes'] / held - 1):+.2f} %")
                    self.assertLess(abs(estimate["bytes"] / held - 1), CLOSE)

    def test_smollm2(self):
        self.check_model(MODEL)

    def test_qwen(self):
        self.check_model(QWEN)

    def test_gemma(self):
        self.check_model(GEMMA)


if __name__ == "__main__":
    unittest.main()
