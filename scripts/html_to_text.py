#!/usr/bin/env python3
"""Turns a folder of DocBook HTML pages into plain prose: one paragraph a line, pages in the order of their names.

usage: html_to_text.py HTML_FOLDER OUTPUT
Navigation, tables of contents, listings and headers are dropped; the same pages give the same bytes.
"""

import html.parser
import pathlib
import sys

DROPPED_TAGS = {"head", "script", "style", "pre"}
DROPPED_IDS = {"banner"}
DROPPED_CLASSES = {"docnav", "toc", "indexterm"}
BLOCK_TAGS = {"div", "p", "h1", "h2", "h3", "h4", "h5", "li", "dt", "dd", "tr", "table", "ul", "ol", "dl", "br"}
VOID_TAGS = {"br", "img", "hr", "meta", "link", "input", "col"}


class ProseParser(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.paragraphs = []
        self.words = []
        self.open_tags = []
        self.dropped_depth = None

    def end_paragraph(self):
        text = " ".join("".join(self.words).split())
        if text:
            self.paragraphs.append(text)
        self.words = []

    def handle_starttag(self, tag, attrs):
        if tag in BLOCK_TAGS:
            self.end_paragraph()
        if tag in VOID_TAGS:
            return
        self.open_tags.append(tag)
        classes = set((dict(attrs).get("class") or "").split())
        dropped = tag in DROPPED_TAGS or bool(classes & DROPPED_CLASSES) or dict(attrs).get("id") in DROPPED_IDS
        if self.dropped_depth is None and dropped:
            self.dropped_depth = len(self.open_tags)

    def handle_startendtag(self, tag, attrs):
        if tag in BLOCK_TAGS:
            self.end_paragraph()

    def handle_endtag(self, tag):
        if tag in BLOCK_TAGS:
            self.end_paragraph()
        if tag not in self.open_tags:
            return
        while self.open_tags.pop() != tag:
            pass
        if self.dropped_depth is not None and len(self.open_tags) < self.dropped_depth:
            self.dropped_depth = None

    def handle_data(self, data):
        if self.dropped_depth is None:
            self.words.append(data)


def main():
    folder, output = map(pathlib.Path, sys.argv[1:])
    pages = sorted(folder.glob("*.html"))
    if not pages:
        sys.exit(f"html_to_text.py: no HTML pages in {folder}")
    lines = []
    for page in pages:
        if page.name == "index.html":
            continue
        parser = ProseParser()
        parser.feed(page.read_text(encoding="utf-8"))
        parser.close()
        parser.end_paragraph()
        lines += parser.paragraphs
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
