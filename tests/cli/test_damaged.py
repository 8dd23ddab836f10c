"""Bad inputs: each ends in one line that says what to do, and the documented exit code."""

import os
import pathlib
import signal
import struct
import subprocess
import tempfile
import time
import unittest

from varve_cli import FAILED, INTERRUPTED, MODEL, PROGRAM, TEXT, USAGE, CliTest, needs, run


class Damaged(CliTest):
    @classmethod
    def setUpClass(cls):
        needs(MODEL, TEXT)
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.text = cls.path / "text.txt"
        cls.text.write_bytes(TEXT.read_bytes()[:20000])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def with_model(self, model):
        """Every command that takes a model, on this one."""
        yield ["estimate", "--model", model]
        yield ["recommend", "--model", model]
        yield ["profile", "--model", model, "--method", "f16", "--max-tokens", "1"]
        yield ["compare", "--model", model, "--text", self.text, "--methods", "f16"]
        yield ["layers", "--model", model, "--text", self.text]


class Models(Damaged):
    def check_all(self, model, *words):
        for arguments in self.with_model(model):
            with self.subTest(command=arguments[0]):
                self.check_error(run(*arguments), FAILED, *words)

    def test_missing_file(self):
        self.check_all(self.path / "nothing.gguf", "nothing.gguf", "no such file")

    def test_folder(self):
        self.check_all(self.path, "not a file")

    def test_empty_file(self):
        (self.path / "empty.gguf").write_bytes(b"")
        self.check_all(self.path / "empty.gguf", "not a GGUF")

    def test_foreign_file(self):
        self.check_all(self.text, "not a GGUF")

    def test_truncated_anywhere(self):
        data = MODEL.read_bytes()
        for size in (4, 8, 23, 24, 300, 5000, 1_000_000, 3_000_000, len(data) // 2, len(data) - 1):
            cut = self.path / "cut.gguf"
            cut.write_bytes(data[:size])
            with self.subTest(size=size):
                self.check_error(run("estimate", "--model", cut), FAILED, "cut.gguf")

    def test_changed_header_bytes(self):
        data = bytearray(MODEL.read_bytes())
        flipped = self.path / "flipped.gguf"
        for offset in (4, 8, 16, 24, 32, 40, 97, 200, 411, 777, 1500):
            data[offset] ^= 0xFF
            flipped.write_bytes(data)
            data[offset] ^= 0xFF
            with self.subTest(offset=offset):
                result = run("estimate", "--model", flipped)
                self.assertIn(result.returncode, (0, FAILED), result.stderr)
                if result.returncode == FAILED:
                    self.check_error(result, FAILED)

    def test_header_without_model(self):
        bare = self.path / "bare.gguf"
        bare.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
        self.check_error(run("estimate", "--model", bare), FAILED, "bare.gguf")


class Settings(Damaged):
    def check_usage(self, *arguments, words=()):
        for command in (["profile", "--model", MODEL, "--method"], ["estimate", "--model", MODEL, "--methods"]):
            with self.subTest(command=command[0]):
                self.check_error(run(*command, *arguments), USAGE, *words)

    def test_unknown_method(self):
        self.check_usage("turboquant", words=["turboquant", "age_tiered", "balanced", "q8_0"])

    def test_unknown_field(self):
        self.check_usage("age_tiered", "--set", "age_bits_odl=3", words=["age_bits_odl", "age_bits_old"])

    def test_value_out_of_range(self):
        self.check_usage("age_tiered", "--set", "age_bits_old=17", words=["age_bits_old", "1..16", "17"])

    def test_value_of_another_type(self):
        self.check_usage("age_tiered", "--set", "age_bits_old=many", words=["age_bits_old", "many"])

    def test_no_equals_sign(self):
        self.check_usage("age_tiered", "--set", "age_bits_old", words=["FIELD=VALUE"])

    def test_field_of_another_method_is_not_ignored(self):
        self.check_usage("age_tiered", "--set", "amc_gamma=0.2", words=["amc_gamma"])

    def test_field_of_another_method_in_a_layer(self):
        self.check_usage("age_tiered", "--set", "l2.amc_gamma=0.2", words=["amc_gamma"])

    def test_boundaries_out_of_order(self):
        self.check_usage("age_tiered", "--set", "age_mid_boundary=4", words=["age_mid_boundary"])

    def test_setting_for_a_stock_cache(self):
        self.check_error(run("compare", "--model", MODEL, "--text", self.text, "--methods", "q8_0", "--set", "sink_tokens=1"), USAGE, "sink_tokens")

    def test_method_that_needs_whole_calls(self):
        self.check_error(run("compare", "--model", MODEL, "--text", self.text, "--methods", "amc"), USAGE, "amc")

    def test_numbers(self):
        self.check_error(run("estimate", "--model", MODEL, "--ctx", "many"), USAGE, "--ctx", "many")
        self.check_error(run("estimate", "--model", MODEL, "--ctx", "-5"), USAGE, "-5")
        self.check_error(run("recommend", "--model", MODEL, "--ram", "4X"), USAGE, "--ram", "4X")
        self.check_error(run("recommend", "--model", MODEL, "--ctx", "1M"), USAGE, "8192")
        self.check_error(run("profile", "--model", MODEL, "--max-tokens", "0"), USAGE, "--max-tokens")


class Texts(Damaged):
    def compare(self, text, *more, **keywords):
        return run("compare", "--model", MODEL, "--text", text, "--methods", "f16", "--decode", 0, "--error-layers", 0, *more, **keywords)

    def test_missing(self):
        self.check_error(self.compare(self.path / "nothing.txt"), FAILED, "--text", "nothing.txt")

    def test_empty(self):
        for content in (b"", b"  \n\t\n"):
            (self.path / "empty.txt").write_bytes(content)
            self.check_error(self.compare(self.path / "empty.txt"), FAILED, "the text is empty")

    def test_folder(self):
        self.check_error(self.compare(self.path), FAILED, "is a folder")

    def test_shorter_than_the_context(self):
        (self.path / "tiny.txt").write_text("A short text of a few words only, and no more than that. " * 3)
        self.check_error(self.compare(self.path / "tiny.txt"), FAILED, "fewer than one chunk of --ctx 1024")

    def test_prompt_longer_than_the_context(self):
        result = run("profile", "--model", MODEL, "--method", "f16", "--prompt-file", self.text, "--ctx", "64")
        self.check_error(result, USAGE, "--ctx 64")

    def test_bytes_that_are_no_utf8(self):
        (self.path / "binary.txt").write_bytes(bytes(range(256)) * 12)
        result = self.compare(self.path / "binary.txt", "--ctx", "64", "--chunks", 1, "--json")
        self.check_json("compare", result)


class Outputs(Damaged):
    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            result = run("estimate", "--model", MODEL, stdout=full)
        self.check_error(result, FAILED, "No space left")

    def test_full_disk_under_the_report(self):
        result = run("compare", "--model", MODEL, "--text", self.text, "--methods", "f16", "--ctx", "64", "--chunks", 1, "--decode", 0,
                     "--error-layers", 0, "--html", "/dev/full")
        self.check_error(result, FAILED, "/dev/full")

    def test_full_disk_under_the_state(self):
        result = run("compare", "--model", MODEL, "--text", self.text, "--methods", "f16", "--ctx", "64", "--chunks", 1, "--decode", 0,
                     "--error-layers", 0, "--state", "/dev/full")
        self.check_error(result, FAILED, "/dev/full", "--state")

    def test_report_into_no_folder(self):
        report = self.path / "no" / "folder" / "report.html"
        result = run("compare", "--model", MODEL, "--text", self.text, "--methods", "f16", "--ctx", "64", "--chunks", 1, "--decode", 0,
                     "--error-layers", 0, "--html", report)
        self.check_error(result, FAILED, "--html", "report.html")

    def test_closed_pipe(self):
        reader, writer = os.pipe()
        os.close(reader)
        result = run("estimate", "--model", MODEL, stdout=writer)
        os.close(writer)
        self.check_error(result, FAILED, "stdout")

    def test_interrupt(self):
        process = subprocess.Popen([PROGRAM, "profile", "--model", MODEL, "--method", "f16", "--prompt-file", self.text, "--max-tokens", "2000"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, INTERRUPTED, errors)
        self.assertTrue(errors.startswith("varve: interrupted"), errors)


if __name__ == "__main__":
    unittest.main()
