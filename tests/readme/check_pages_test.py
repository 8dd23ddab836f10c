#!/usr/bin/env python3
"""The page checks must find what they are there for."""

import argparse
import pathlib
import tempfile
import unittest

import check_pages

PAGE = """# Title
[there](there.md) [gone](gone.md) [web](https://example.org/x)
```sh
make demo
make nonsense
```
```cpp
#include <cstdio>
int main() { std::puts("hello"); }
```
```text
hello
```
```cpp
int fragment;
```
"""


class PagesTest(unittest.TestCase):
    def test_programs_are_found_with_what_they_print(self):
        self.assertEqual([(p[0], p[2]) for p in check_pages.programs(PAGE)], [("cpp", "hello\n")])

    def test_broken_link_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "there.md").write_text("")
            page = pathlib.Path(folder, "page.md")
            self.assertEqual(
                check_pages.broken_links(page, PAGE), ["page.md: link to gone.md, which is not there"]
            )

    def test_unknown_make_target_is_found(self):
        targets = check_pages.make_targets("demo: build\n\techo\n")
        found = check_pages.unknown_make_targets(pathlib.Path("page.md"), PAGE, targets)
        self.assertEqual(found, ["page.md: `make nonsense` is no target of the Makefile"])

    def run_source(self, source, expected):
        args = argparse.Namespace(tree=".", cc="cc", cxx="c++", flags="", library="-lm")
        return check_pages.run_program(args, pathlib.Path("page.md"), "cpp", source, expected)

    def test_program_is_compiled_run_and_compared(self):
        source = check_pages.programs(PAGE)[0][1]
        self.assertEqual(self.run_source(source, "hello\n"), [])
        self.assertIn("where the page says", self.run_source(source, "goodbye\n")[0])
        self.assertIn("failed", self.run_source("int main() { return x; }", None)[0])
        self.assertIn("failed (3)", self.run_source("int main() { return 3; }", None)[0])


if __name__ == "__main__":
    unittest.main()
