#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pointer in a condition stands by itself: p, !p.

usage: null.py [--fix] ROOT

Finds p == NULL, and p != NULL in a condition. Elsewhere p != NULL makes a value of a pointer: it is returned, stored,
counted. --fix writes them as they should be. Prints one line per fault; the exit status is 1 with any.
"""
import re
import sys

from tree import report, sources

HIDDEN = re.compile(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
COMPARED = re.compile(r"\s*([!=]=)\s*NULL\b")
# what stands before and behind a condition; a macro that checks has a condition first
CHECKS = "assert|cr_assert|cr_expect|require|CHECK|CHECK_SAY"
BEFORE = re.compile(rf"(&&|\|\||\b(if|while)\s*\(|\b({CHECKS})\(|\bfor\b[^;{{}}]*;)\s*$")
BEHIND = re.compile(r"\s*\\?\s*(&&|\|\||\?)")


def start_of(text, end):
    """Where the operand begins that ends before `end`: names, members, calls, elements, and signs before them."""
    at = end
    while at > 0:
        if text[at - 1] in ")]":
            depth = 0
            while at > 0:
                at -= 1
                depth += (text[at] in ")]") - (text[at] in "([")
                if depth == 0:
                    break
        elif text[at - 1].isalnum() or text[at - 1] in "_.#":
            at -= 1
        elif text[at - 2:at] == "->":
            at -= 2
        else:
            break
    while at > 0 and text[at - 1] in "*&" and not re.search(r"[\w)\]] ?[*&]+$|&&$", text[:at]):
        at -= 1
    return at


def found_in(text):
    """(start, end, replacement) of each comparison that should not be, last one first."""
    plain = HIDDEN.sub(lambda hidden: re.sub(r"[^\n]", "x", hidden[0]), text)
    for match in reversed(list(COMPARED.finditer(plain))):
        start, end = start_of(plain, match.start()), match.end()
        operand = text[start:match.start()]
        if match[1] == "==":
            yield start, end, "!" + operand
        elif BEFORE.search(plain[max(0, start - 300):start]) or BEHIND.match(plain, end):
            yield start, end, operand


def faults(root, fix):
    for path in sources(root, ["engine", "api", "plugins", "bench", "tests"], (".c", ".h")):
        with open(f"{root}/{path}", encoding="utf-8") as f:
            text = before = f.read()
        for start, end, better in found_in(before):
            if not fix:
                line = before.count("\n", 0, start) + 1
                yield f"{path}:{line}: write {better} for {before[start:end]}, or run tests/house/null.py --fix ."
            text = text[:start] + better + text[end:]
        if fix and text != before:
            with open(f"{root}/{path}", "w", encoding="utf-8") as f:
                f.write(text)


if __name__ == "__main__":
    sys.exit(report(faults(sys.argv[-1], "--fix" in sys.argv)))
