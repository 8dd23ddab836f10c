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
    LISTING = (
        "0000000000000000 T varve::QkAvx512(varve::QkArgs const&)\n"
        "0000000000000040 T varve::QkPackAvx512(varve::QkPackArgs const&)\n"
        "0000000000000080 t varve::(anonymous namespace)::Help()\n"
        "                 U memcpy\n"
        "                 w __gmon_start__\n"
    )

    def test_a_clean_object_passes(self):
        self.assertEqual(check_isa_symbols.weak_symbols(self.LISTING), [])
        self.assertEqual(check_isa_symbols.misnamed_symbols("qk_avx512.cc.o", self.LISTING), [])

    def test_weak_symbol_is_found(self):
        listing = self.LISTING + "0000000000000000 W int const& std::max<int>(int const&, int const&)\n"
        self.assertEqual(check_isa_symbols.weak_symbols(listing), ["int const& std::max<int>(int const&, int const&)"])

    def test_misnamed_kernel_is_found(self):
        self.assertEqual(len(check_isa_symbols.misnamed_symbols("qk_avx2.cc.o", self.LISTING)), 2)
        self.assertEqual(len(check_isa_symbols.misnamed_symbols("pv_avx512.cc.o", self.LISTING)), 2)
        self.assertEqual(len(check_isa_symbols.misnamed_symbols("kernels.cc.o", self.LISTING)), 1)
        table = "0000000000000000 D varve::kRowsAvx2\n"
        self.assertEqual(check_isa_symbols.misnamed_symbols("rows_avx2.cc.o", table), [])


if __name__ == "__main__":
    unittest.main()
