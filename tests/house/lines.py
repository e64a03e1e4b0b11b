#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lines of sources and pages.

usage: lines.py ROOT lengths|words|pages

lengths  a function has at most 80 lines with its head, a file 800; exceptions.txt names others
words    words.txt has what this field calls otherwise
pages    a line of the documentation has at most 120 columns

Prints one line per fault; the exit status is 1 with any.
"""
import glob
import os
import re
import sys

from tree import Exceptions, report, sources

HEAD = re.compile(r"[A-Za-z_ \t(]")  # of a function: a line of it
FUNCTION_LINES, FILE_LINES, PAGE_COLUMNS = 80, 800, 120


def lines_of(root, path):
    with open(f"{root}/{path}", encoding="utf-8") as f:
        return f.read().splitlines()


def functions(lines):
    """(number of the first line, lines, name) of each function: its braces are in the first column."""
    first = None
    for number, line in enumerate(lines):
        if line == "{":
            first = number
            # its head is all lines up to a blank one, a comment, a directive or another definition
            while first > 0 and HEAD.match(lines[first - 1]) and not lines[first - 1].endswith(("*/", ";")):
                first -= 1
        elif line == "}" and first is not None:
            name = re.search(r"\bTest\(\w+, (\w+)|(\w+)\(", " ".join(lines[first:number]))
            yield first + 1, number + 1 - first, (name[1] or name[2]) if name else "?"
            first = None


def lengths(root):
    exceptions = Exceptions(f"{root}/tests/house/exceptions.txt")
    for path in sources(root, endings=(".c", ".h")):
        lines = lines_of(root, path)
        if len(lines) > FILE_LINES and not exceptions.take("file", path):
            yield f"{path}: {len(lines)} lines, at most {FILE_LINES}: split it by what its parts are for"
        for first, count, name in functions(lines):
            if count > FUNCTION_LINES and not exceptions.take("function", path, name):
                yield f"{path}:{first}: {name}() has {count} lines, at most {FUNCTION_LINES}: take out a step of it"
    yield from exceptions.needless("file", "function")


def words(root):
    with open(f"{root}/tests/house/words.txt", encoding="utf-8") as f:
        rows = [line.split(None, 1) for line in f if line.strip() and line[0] != "#"]
    rows = [(re.compile(rf"(?<![a-z]){word}(?![a-z])", re.IGNORECASE), term.strip()) for word, term in rows]
    paths = sources(root, ["engine", "api", "include"]) + pages_of(root, "docs")
    paths.remove("docs/glossary.md")  # lists them
    for path in paths:
        for number, line in enumerate(lines_of(root, path), 1):
            for word, term in rows:
                found = word.search(line)
                if found:
                    yield f"{path}:{number}: {found[0]}: the field says {term}: {line.strip()}"


def pages_of(root, folder):
    return sorted(os.path.relpath(path, root) for path in glob.glob(f"{root}/{folder}/*.md"))


def pages(root):
    for path in pages_of(root, ".") + pages_of(root, "docs"):
        for number, line in enumerate(lines_of(root, path), 1):
            if len(line) > PAGE_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, at most {PAGE_COLUMNS}: {line[:40]}..."


CHECKS = {"lengths": lengths, "words": words, "pages": pages}
sys.exit(report(CHECKS[sys.argv[2]](sys.argv[1])))
