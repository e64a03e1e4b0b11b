#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dependencies go downward, and not in circles.

usage: layers.py ROOT BUILD [OBJECTS...]

Reads the lines #include of the sources below ROOT, and the symbols of the objects in BUILD: which file uses functions
and data of which. ROOT/tests/house/layers.txt declares the layers, exceptions.txt what is let pass. OBJECTS are
folders with more objects of the library. Prints one line per fault; the exit status is 1 with any.
"""
import glob
import os
import re
import subprocess
import sys

from tree import Exceptions, report, sources

# folders that the build searches for "file.h"
INCLUDE_DIRS = ["include", "engine", "bench", ""]
PUBLIC = "uccl_"
LIBRARY = ["libuccl-engine-all.a.p", "libuccl-core.a.p"]


class Layers:
    """layers.txt: the folders in their order, and what each may use."""

    def __init__(self, path):
        self.order, self.only = [], {}
        with open(path) as f:
            for words in (line.split("#")[0].split() for line in f):
                if words:
                    self.order.append(words[0])
                    if words[1:2] == ["only"]:
                        self.only[words[0]] = words[2:]

    def of(self, path):
        """The longest folder of the table that holds the file; None: no folder does."""
        return max((layer for layer in self.order if path.startswith(layer + "/")), key=len, default=None)

    def fault(self, user, used, public):
        """Why a file may not use the other; None: it may. `public`: what it uses is declared in include/."""
        above, below = self.of(user), self.of(used)
        if above == below or None in (above, below):
            return None
        if self.order.index(above) < self.order.index(below):
            return f"{above} is below {below}"
        if below not in self.only.get(above, [below]) and not public:
            return f"{above} uses only {' '.join(self.only[above])}"
        return None


def stem(path):
    return re.sub(r"\.[a-z]+$", "", path)


def includes(root, files):
    """{file: {included file: words for a person}}"""
    known, edges = set(files), {}
    for path in files:
        with open(f"{root}/{path}") as f:
            for number, line in enumerate(f, 1):
                found = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
                for folder in [os.path.dirname(path), *INCLUDE_DIRS] if found else []:
                    target = os.path.normpath(os.path.join(folder, found[1]))
                    if target in known:
                        edges.setdefault(path, {})[target] = f"{path}:{number} includes {target}"
                        break
    return edges


def read_objects(folders, files):
    """({symbol: file that defines it}, {file: symbols that it needs}) of the objects in folders (path, subfolder)."""
    defined, needed = {}, {}
    for folder, within in folders:
        source_of = {path[len(within):].replace("/", "_") + ".o": path for path in files if path.startswith(within)}
        objects = sorted(o for o in glob.glob(f"{folder}/*.o") if os.path.basename(o) in source_of)
        if not objects:
            continue
        listing = subprocess.run(["nm", "-A", *objects], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            name, _, rest = line.partition(":")
            path, (kind, symbol) = source_of[os.path.basename(name)], rest.split()[-2:]
            if kind == "U":
                needed.setdefault(path, set()).add(symbol)
            elif kind in "TDBRVWGSCu":
                defined[symbol] = path
    return defined, needed


def uses(build, more, files):
    """{file: {file whose symbols it uses: words for a person}}, and the files that have objects."""
    edges, seen = {}, set()
    library = read_objects([(f"{build}/{name}", "") for name in LIBRARY] + [(folder, "") for folder in more], files)
    programs = [path for part in ("bench", "plugins/*") for path in glob.glob(f"{build}/{part}/*.p")]
    parts = [library] + [read_objects([(p, os.path.dirname(os.path.relpath(p, build)) + "/")], files) for p in programs]
    for defined, needed in parts:
        where = {**library[0], **defined}
        seen |= set(defined.values()) | set(needed)
        for path, symbols in needed.items():
            # one that is not public tells more
            for symbol in sorted(symbols & set(where), key=lambda name: (name.startswith(PUBLIC), name)):
                if where[symbol] != path:
                    edges.setdefault(path, {}).setdefault(where[symbol], f"{path} uses {symbol} of {where[symbol]}")
    return edges, seen


def upward(layers, exceptions, edges):
    for user, targets in sorted(edges.items()):
        for used, words in sorted(targets.items()):
            why = layers.fault(user, used, f" uses {PUBLIC}" in words)
            if why and not exceptions.take("upward", stem(user), stem(used)):
                yield f"{words}: {why} (layers.txt). Hand it over as an argument or in a table, or move it down"


def reachable(edges, start):
    """{file: the one before it on a shortest way from `start`}"""
    before, front = {}, [start]
    while front:
        ahead = []
        for path in front:
            for target in sorted(edges.get(path, ())):
                if target not in before:
                    before[target] = path
                    ahead.append(target)
        front = ahead
    return before


def circles(edges):
    """Sets of files in which each reaches each other one."""
    reach = {path: set(reachable(edges, path)) for path in edges}
    found = {frozenset(other for other in reach[path] if path in reach.get(other, ())) for path in edges}
    return sorted((circle for circle in found if len(circle) > 1), key=sorted)


def walk(edges, start):
    """A shortest circle through `start`, in words."""
    before, path, words = reachable(edges, start), start, []
    while not words or path != start:
        words.insert(0, edges[before[path]][path])
        path = before[path]
    return "; ".join(words)


def circle_faults(exceptions, edges, unbuilt):
    """`unbuilt`: files without objects, which an exception may name all the same."""
    found = circles(edges)
    allowed = exceptions.circles()
    for circle in found:
        names = {stem(path) for path in circle}
        near = max(allowed, key=lambda names_allowed: len(names & names_allowed), default=frozenset())
        joined = sorted(path for path in circle if stem(path) not in near)
        if joined:
            grown = f" (new in that of exceptions.txt: {' '.join(joined)})" if names & near else ""
            yield f"a circle{grown}: {walk(edges, joined[0])}. Hand one of these over as an argument, or move it"
    for names in allowed:
        inside = set().union(*({stem(path) for path in circle} for circle in found)) if found else set()
        # the other files are not judged where one of the line was not built
        needless = set() if names & unbuilt else names - inside
        if needless:
            yield f"exceptions.txt: no longer in a circle: {' '.join(sorted(needless))}. Delete the names there"


def main():
    root, build, *more = sys.argv[1:]
    layers, files = Layers(f"{root}/tests/house/layers.txt"), sources(root)
    exceptions = Exceptions(f"{root}/tests/house/exceptions.txt")
    included = includes(root, files)
    used, seen = uses(build, more, files)
    faults = [f"{path}: its folder is in no line of tests/house/layers.txt" for path in files if not layers.of(path)]
    library = [path for path in files if path.startswith("engine/core/") and path.endswith(".c")]
    if not set(library) <= seen:
        faults.append(f"{build}: no objects of {' '.join(sorted(set(library) - seen))}; build first")
    faults += upward(layers, exceptions, included)
    faults += upward(layers, exceptions, used)
    faults += exceptions.needless("upward")
    faults += (f"includes in {fault}" for fault in circle_faults(NoExceptions, included, set()))
    faults += circle_faults(exceptions, used, {stem(path) for path in set(files) - seen if path.endswith(".c")})
    return report(faults)


class NoExceptions:
    """Includes have none."""
    @staticmethod
    def circles():
        return []


sys.exit(main())
