"""What the tests of the command line share: running it, inputs, and a validator for its JSON schemas."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("VARVE_PROGRAM", "")
CACHE = pathlib.Path(os.environ.get("VARVE_CACHE_DIR", pathlib.Path.home() / ".cache" / "varve"))
MODEL = CACHE / "models" / "smollm2-135m-q4_1.gguf"
GEMMA = CACHE / "models" / "gemma3-270m-q4_k_m.gguf"
QWEN = CACHE / "models" / "qwen2.5-coder-0.5b-q4_k_m.gguf"
TEXT = CACHE / "texts" / "handbook.txt"
SCRATCH = tempfile.TemporaryDirectory()  # finished pieces of interrupted comparisons
SCHEMAS = ROOT / "docs" / "cli" / "schema"

OK, FAILED, USAGE, NOTHING_FITS, NO_PLUGIN, INTERRUPTED = 0, 1, 2, 3, 4, 130


def needs(*paths):
    """Fails, rather than skips, when an input is missing: `make models` fetches them."""
    missing = [str(path) for path in paths if not pathlib.Path(path).exists()]
    if missing:
        raise AssertionError(f"missing {', '.join(missing)}; run `make models`")


def run(*arguments, stdin=None, env=None, stdout=subprocess.PIPE, timeout=900):
    """Runs the program; the result has returncode, stdout, stderr as text."""
    if not PROGRAM:
        raise AssertionError("set VARVE_PROGRAM to the built varve program")
    environment = dict(os.environ, XDG_CACHE_HOME=SCRATCH.name)
    environment.update(env or {})
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL if stdin is None else None,
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        timeout=timeout,
        check=False,
    )


def violations(value, schema, path="$"):
    """Differences between a JSON value and the part of JSON Schema 2020-12 that our schemas use."""
    if "anyOf" in schema:
        alternatives = [violations(value, option, path) for option in schema["anyOf"]]
        return [] if any(not found for found in alternatives) else alternatives[-1]
    if "const" in schema:
        return [] if value == schema["const"] else [f"{path}: {value!r} is not {schema['const']!r}"]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{path}: {value!r} is none of {schema['enum']}"]
    types = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    kind = schema["type"]
    is_flag = isinstance(value, bool)
    if not isinstance(value, types[kind]) or (is_flag and kind in ("integer", "number")):
        return [f"{path}: {value!r} is no {kind}"]
    found = []
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{path}: {value} is below {schema['minimum']}")
    if kind == "object":
        found += [f"{path}: no {key}" for key in schema["required"] if key not in value]
        for key, part in value.items():
            if key in schema["properties"]:
                found += violations(part, schema["properties"][key], f"{path}.{key}")
            elif not schema.get("additionalProperties", True):
                found.append(f"{path}: {key} is not in the schema")
    if kind == "array":
        for index, part in enumerate(value):
            found += violations(part, schema["items"], f"{path}[{index}]")
    return found


class CliTest(unittest.TestCase):
    """Assertions on finished runs."""

    def check_ok(self, result):
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertEqual(result.stderr, "", "a run that succeeds says nothing on stderr")

    def check_table(self, text):
        for line in text.splitlines():
            self.assertLessEqual(len(line), 100, line)

    def check_json(self, command, result, code=OK):
        self.assertEqual(result.returncode, code, result.stderr)
        value = json.loads(result.stdout)
        schema = json.loads((SCHEMAS / f"{command}.json").read_text())
        self.assertEqual(violations(value, schema), [])
        return value

    def check_error(self, result, code, *words):
        """One line on stderr that names what was wrong, nothing on stdout."""
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout or "", "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("varve: "), result.stderr)
        for word in words:
            self.assertIn(str(word), result.stderr)
