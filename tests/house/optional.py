# SPDX-License-Identifier: Apache-2.0
"""usage: optional.py ROOT BUILD

Unit tests that use what an option leaves out of the build are in the list of that option in ROOT/tests/meson.build, and
no others: such a build would not link. BUILD has everything; its objects tell what each test uses.
"""
import glob
import os
import re
import subprocess
import sys

# conditions of meson.build, and the lists of tests/meson.build
LISTS = {"verbs.found()": "needs_verbs", "cuda or hip": "needs_gpu"}


def read(path):
    with open(path) as f:
        return f.read()


def optional_sources(root):
    """{condition: objects of the sources that are in the build only then}"""
    blocks = re.findall(r"^if (.*)\n  engine_sources \+= files\(([^)]*)\)", read(f"{root}/meson.build"), re.M)
    return {condition: [path.replace("/", "_") + ".o" for path in re.findall(r"'([^']+)'", files)]
            for condition, files in blocks}


def symbols(objects, kinds):
    listing = subprocess.run(["nm", *objects], capture_output=True, text=True, check=True).stdout
    return {words[-1] for words in map(str.split, listing.splitlines()) if len(words) > 1 and words[-2] in kinds}


def faults(root, build):
    tests = {os.path.basename(p)[5:-2]: glob.glob(f"{p}/*.o") for p in glob.glob(f"{build}/tests/test_*.p")}
    needed = {name: symbols(objects, "U") for name, objects in tests.items()}
    text = read(f"{root}/tests/meson.build")
    for condition, objects in optional_sources(root).items():
        there = [f"{build}/libuccl-engine-all.a.p/{name}" for name in objects]
        missing = [path for path in there if not os.path.exists(path)]
        if missing:
            yield f"{missing[0]} is not there: the build is one without {condition}"
            continue
        defined = symbols(there, "TDBRVWGSC")
        listed = re.search(rf"^{LISTS.get(condition, '-')} = \[([^\]]*)\]", text, re.M)
        listed = set(re.findall(r"'([^']+)'", listed[1])) if listed else set()
        for name in sorted(needed):
            used = sorted(needed[name] & defined)
            if used and name not in listed:
                where = f"put '{name}' into {LISTS[condition]}" if condition in LISTS else "leave it out"
                yield f"tests/unit/test_{name}.c uses {used[0]}(), which is there only if {condition}: {where} of tests/meson.build"
            elif not used and name in listed:
                yield f"tests/meson.build: {LISTS[condition]} lists '{name}', which uses nothing of it"
        for name in sorted(listed - set(needed)):
            yield f"tests/meson.build: {LISTS[condition]} lists '{name}', and there is no such test"


if __name__ == "__main__":
    found = list(faults(*sys.argv[1:]))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
