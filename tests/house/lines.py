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
    with open(f"{root}/tests/house/words.txt") as f:
        rows = [line.split("#")[0].split(None, 1) for line in f if line.split("#")[0].strip()]
    paths = sources(root, ["engine", "api", "include"]) + sorted(
        os.path.relpath(path, root) for path in glob.glob(f"{root}/docs/*.md"))
    for path in paths:
        for number, line in enumerate(lines_of(root, path), 1):
            for word, term in rows:
                if re.search(rf"(?<![A-Za-z]){word}(?![A-Za-z])", line):
                    yield f"{path}:{number}: {word}: the field says {term.strip()}: {line.strip()}"


def pages(root):
    paths = glob.glob(f"{root}/docs/*.md") + [f"{root}/{name}" for name in ("README.md", "CONTRIBUTING.md")]
    for path in sorted(os.path.relpath(path, root) for path in paths if os.path.exists(path)):
        for number, line in enumerate(lines_of(root, path), 1):
            if len(line) > PAGE_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, at most {PAGE_COLUMNS}: {line[:40]}..."


CHECKS = {"lengths": lengths, "words": words, "pages": pages}
sys.exit(report(CHECKS[sys.argv[2]](sys.argv[1])))
