"""Commands that need no model: help, methods, run --dry-run, documents that have to keep up."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from varve_cli import NOTHING_FITS, OK, PROGRAM, ROOT, SCHEMAS, USAGE, CliTest, run

COMMANDS = ["profile", "compare", "run", "methods", "estimate", "recommend", "doctor", "layers"]


def options_of(command):
    """Long options that `varve COMMAND --help` lists."""
    return set(re.findall(r"(--[a-z-]+)", run(command, "--help").stdout.split("Example:")[0]))


class Help(CliTest):
    def test_every_command_has_help_with_an_example(self):
        top = run("--help").stdout
        for command in COMMANDS:
            with self.subTest(command=command):
                result = run(command, "--help")
                self.check_ok(result)
                self.assertIn(f"  varve {command}", result.stdout.split("Example:")[1])
                self.assertIn(f"\n  {command} ", top)

    def test_version_names_library_kernels_and_host(self):
        self.assertRegex(run("--version").stdout, r"^varve \d+\.\d+\.\d+ \(kernels: \w+; llama\.cpp .+\)\n$")

    def test_no_command_is_a_usage_error(self):
        self.check_error(run(), USAGE, "varve --help")

    def test_unknown_option_names_the_help(self):
        self.check_error(run("methods", "--frobnicate"), USAGE, "--frobnicate", "varve methods --help")


class Methods(CliTest):
    def test_tables(self):
        result = run("methods")
        self.check_ok(result)
        self.check_table(result.stdout)
        for name in ("fp16", "uniform", "kivi", "age_tiered", "amc", "safe", "balanced", "small", "seed"):
            self.assertRegex(result.stdout, rf"(?m)^{name} ")

    def test_fields_of_one_method(self):
        result = run("methods", "age_tiered")
        self.check_ok(result)
        self.check_table(result.stdout)
        self.assertIn("age_bits_old = 2   int: 1..16", result.stdout)
        self.assertNotIn("amc_gamma", result.stdout)

    def test_json(self):
        value = self.check_json("methods", run("methods", "--json"))
        names = [method["name"] for method in value["methods"]]
        self.assertEqual(names, ["fp16", "uniform", "kivi", "age_tiered", "amc"])
        age = value["methods"][names.index("age_tiered")]
        self.assertIn("age_mid_boundary", age["config_fields"])
        self.assertEqual(age["config_fields"], [field["name"] for field in age["field_schema"]])

    def test_family(self):
        value = self.check_json("methods", run("methods", "--family", "reference", "--json"))
        self.assertEqual([method["name"] for method in value["methods"]], ["fp16"])

    def test_unknown_method_lists_the_methods(self):
        self.check_error(run("methods", "turbo"), USAGE, "turbo", "age_tiered")


class Schemas(unittest.TestCase):
    def test_one_for_each_command(self):
        self.assertEqual(sorted(path.stem for path in SCHEMAS.glob("*.json")), sorted(COMMANDS))

    def test_they_pin_name_and_version(self):
        for command in COMMANDS:
            schema = json.loads((SCHEMAS / f"{command}.json").read_text())
            self.assertEqual(schema["properties"]["schema"]["const"], f"varve.{command}")
            self.assertEqual(schema["properties"]["schema_version"]["const"], 1)


class Documents(unittest.TestCase):
    """Man page and completions know every command and option, and none that is gone."""

    def check_options(self, text, command, name):
        for option in options_of(command) - {"--help"}:
            self.assertIn(option, text, f"{name} lacks {option} of {command}")

    def test_man_page(self):
        page = (ROOT / "docs" / "cli" / "varve.1").read_text().replace("\\-", "-")
        for command in COMMANDS:
            section = re.split(r"\n\.SS ", page)
            section = next(part for part in section if part.startswith(f"varve {command}"))
            self.check_options(section, command, "varve.1")
            for option in set(re.findall(r"\n\.B[IR]? (--[a-z-]+)", section)):
                self.assertIn(option, options_of(command), f"varve.1 has {option} that {command} lacks")

    def test_completions(self):
        """They are what scripts/cli_completions.py makes of --help now."""
        result = subprocess.run([sys.executable, ROOT / "scripts" / "cli_completions.py", PROGRAM, "--check"],
                                stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        bash = (ROOT / "docs" / "cli" / "completion" / "varve.bash").read_text()
        for command in COMMANDS:
            self.check_options(bash, command, "varve.bash")

    def test_bash_completes(self):
        def complete(*words):
            script = f"source '{ROOT}/docs/cli/completion/varve.bash'; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _varve; echo \"${{COMPREPLY[@]}}\""
            done = subprocess.run(["bash", "-c", script, "bash", *words], stdout=subprocess.PIPE, text=True, check=True)
            return done.stdout.split()

        self.assertEqual(complete("varve", "com"), ["compare"])
        self.assertEqual(complete("varve", "estimate", "--me"), ["--measure", "--methods"])
        self.assertEqual(complete("varve", "compare", "--methods", "q8_0,bal"), ["q8_0,balanced"])
        self.assertEqual(complete("varve", "methods", "--family", "r"), ["reference"])

    def test_exit_codes_are_documented(self):
        page = (ROOT / "docs" / "cli" / "README.md").read_text()
        for code in (0, 1, 2, 3, 4, 130):
            self.assertRegex(page, rf"(?m)^\| {code} \|")


class Run(CliTest):
    def test_dry_run_prints_environment_and_command(self):
        result = run("run", "--no-check", "--dry-run", "--set", "age_bits_old=3", "--method", "age_tiered", "--", "/bin/echo", "a b")
        self.check_ok(result)
        self.assertRegex(result.stdout, r"^GGML_BACKEND_PATH=\S*libggml-varve\.so VARVE_METHOD=age_tiered VARVE_SET=age_bits_old=3 "
                                        r"/bin/echo --device VARVE 'a b'\n$")

    def test_it_becomes_the_program(self):
        result = run("run", "--no-check", "--", "/bin/sh", "-c", 'echo "$VARVE_METHOD $1"', "--device=VARVE", "x")
        self.check_ok(result)
        self.assertEqual(result.stdout, "age_tiered x\n")

    def test_json(self):
        value = self.check_json("run", run("run", "--no-check", "--json", "--", "/bin/echo"))
        self.assertEqual(value["command"], ["/bin/echo", "--device", "VARVE"])

    def test_settings_of_the_environment_do_not_come_on_top(self):
        result = run("run", "--no-check", "--", "/bin/sh", "-c", 'echo "$VARVE_PRESET:$VARVE_METHOD:$VARVE_SET"', "--device=VARVE",
                     env={"VARVE_PRESET": "small", "VARVE_SET": "sink_tokens=0"})
        self.check_ok(result)
        self.assertEqual(result.stdout, ":age_tiered:\n")

    def test_llama_of_another_version(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "llama-cli"
            program.write_text("#!/bin/sh\necho 'load_backend: incompatible API version: 9 != 2' >&2\nexit 1\n")
            program.chmod(0o755)
            self.check_error(run("run", "--", program), 4, "incompatible API version: 9", "VARVE_LLAMA_CPP_DIR")

    def test_program_that_is_no_llama(self):
        self.check_error(run("run", "--", "/bin/true"), 4, "/bin/true", "VARVE")

    def test_program_that_is_not_there(self):
        self.check_error(run("run", "--", "llama-nothing"), 1, "llama-nothing")

    def test_stock_method_is_refused(self):
        self.check_error(run("run", "--method", "q8_0", "--", "/bin/echo"), USAGE, "-ctk q8_0")

    def test_plugin_that_is_not_there(self):
        self.check_error(run("run", "--plugin", "/nowhere/libggml-varve.so", "--", "/bin/echo"), 4, "/nowhere/libggml-varve.so")


class Doctor(CliTest):
    def test_healthy_machine(self):
        result = run("doctor")
        self.assertEqual(result.returncode, OK, result.stdout + result.stderr)
        self.check_table(result.stdout)
        value = self.check_json("doctor", run("doctor", "--json"))
        self.assertEqual(value["n_failed"], 0)
        names = [check["name"] for check in value["checks"]]
        for name in ("CPU kernels", "llama.cpp", "plugin", "device", "tiny model", "llama-server"):
            self.assertIn(name, names)

    def test_each_failure_has_a_cure(self):
        result = run("doctor", "--json", env={"VARVE_SET": "age_bits_old=99"})
        value = self.check_json("doctor", result, NOTHING_FITS)
        failed = [check for check in value["checks"] if check["state"] == "failed"]
        self.assertEqual([check["name"] for check in failed], ["environment"])
        self.assertIn("age_bits_old", failed[0]["detail"])
        self.assertNotEqual(failed[0]["cure"], "")

    def test_plugin_that_is_no_plugin(self):
        value = self.check_json("doctor", run("doctor", "--plugin", PROGRAM, "--json"), NOTHING_FITS)
        failed = [check for check in value["checks"] if check["state"] == "failed"]
        self.assertEqual([check["name"] for check in failed], ["plugin"])

    def test_scalar_kernels_are_a_warning(self):
        value = self.check_json("doctor", run("doctor", "--json", env={"VARVE_ISA": "scalar"}))
        states = {check["name"]: check["state"] for check in value["checks"]}
        self.assertEqual(states["CPU kernels"], "warning")


if __name__ == "__main__":
    unittest.main()
