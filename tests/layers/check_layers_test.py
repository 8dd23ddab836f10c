#!/usr/bin/env python3
"""The tree checks must find what they are there for."""

import pathlib
import tempfile
import unittest

import check_isa_symbols
import check_layers


class TreeTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tree = pathlib.Path(self.folder.name)
        self.write("src/base/status.h", "#include <string>\n")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_downward_includes_pass(self):
        self.write("src/codec/a.cc", '#include "kernels/qk/qk.h"\n#include "base/status.h"\n#include <vector>\n')
        self.write("cli/main.cc", '#include "varve/varve.hpp"\n#include "llama.h"\n#include "cmd.h"\n')
        self.write("cli/cmd.h", "")
        self.assertEqual(check_layers.check_tree(self.tree), [])

    def test_upward_include_is_found(self):
        self.write("src/layout/a.h", '#include "codec/key_table.h"\n')
        self.assertIn("layer layout may not include codec/key_table.h", check_layers.check_tree(self.tree)[0])

    def test_unknown_layer_is_found(self):
        self.write("src/util/a.h", "")
        self.assertIn("is not a layer", check_layers.check_tree(self.tree)[0])

    def test_container_in_isa_file_is_found(self):
        self.write("src/kernels/qk/qk_avx512.cc", "#include <immintrin.h>\n#include <vector>\n")
        self.assertEqual(
            check_layers.check_tree(self.tree),
            ["src/kernels/qk/qk_avx512.cc: an ISA file may not include vector"],
        )

    def test_private_header_outside_is_found(self):
        self.write("examples/a.cc", '#include "cache/attend.h"\n')
        self.write("plugin/ggml/a.cc", '#include "ggml-backend-impl.h"\n#include "llama.h"\n')
        self.assertEqual(len(check_layers.check_tree(self.tree)), 2)

    def test_private_header_in_public_one_is_found(self):
        self.write("include/varve/varve.h", '#include "base/status.h"\n')
        self.assertIn("a public header may not include", check_layers.check_tree(self.tree)[0])


class SymbolTest(unittest.TestCase):
    def test_weak_symbol_is_found(self):
        listing = "0000 T varve_k\n0000 t _ZN12_GLOBAL__N_14HelpEv\n0000 W _ZSt3maxIiERKT_S2_S2_\n0000 V _ZTI1A\n"
        self.assertEqual(check_isa_symbols.weak_symbols(listing), ["_ZSt3maxIiERKT_S2_S2_", "_ZTI1A"])


if __name__ == "__main__":
    unittest.main()
