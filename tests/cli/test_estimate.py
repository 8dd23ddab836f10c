"""What `varve estimate` says after a measurement is what is then held: three models, the presets, up to two lengths."""

import unittest

from varve_cli import GEMMA, MODEL, QWEN, TEXT, CliTest, needs, run

CLOSE = 0.03
PRESETS = "safe,balanced,small"


class Estimate(CliTest):
    def check_model(self, model, lengths=(512, 1024)):
        needs(model, TEXT)
        for n_ctx in lengths:
            common = ["--model", model, "--text", TEXT, "--ctx", n_ctx, "--methods", PRESETS, "--threads", 1, "--json"]
            held = self.check_json("compare", run("compare", *common, "--chunks", 1, "--decode", 0, "--error-layers", 0))
            # Compare decodes in steps of 32, and a sliding window's cache depends on that.
            estimate = self.check_json("estimate", run("estimate", *common, "--batch", 32))
            for said, was in zip(estimate["methods"], held["methods"][1:]):
                self.assertEqual(said["name"], was["name"])
                off = said["bytes"] / was["bytes"] - 1
                print(f"{model.name} {n_ctx} {said['name']}: {was['bytes']} held, estimate {100 * off:+.2f} %")
                self.assertLess(abs(off), CLOSE)

    def test_smollm2(self):
        self.check_model(MODEL)

    def test_qwen(self):
        self.check_model(QWEN)

    def test_gemma(self):
        # The longer one is past its window of 512: cells are written over.
        self.check_model(GEMMA)


if __name__ == "__main__":
    unittest.main()
