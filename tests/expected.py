# SPDX-License-Identifier: Apache-2.0
"""What a test must have run, as its source and its build say: a program that runs less than that has failed.

    unit          the tests in the symbols of the program, among them all that its file names by Test(suite, name
    stress        CASES in its file
    shell scripts "plan N [N when TEST_SHORT=1]" in the script, or in the function of the part that is run
    nccl          likewise; the rows of CASES; the structures of layout.def
    sim           the lines of the corpus, each once; of new seeds as many as there are scenarios in it (TEST_SHORT=1: one)
    mutants       the mutants of mutants.txt
"""
import glob
import os
import re
import subprocess

SCRIPTS = {"mem/gpu": "mem/mem.sh", "vm/vm": "vm/guest_tests.sh"}
PLAN = re.compile(r"^ *plan (\d+)(?: (\d+))?\b", re.MULTILINE)


class Unknown(Exception):
    """Nobody can say what a test must have run."""


def text_of(path):
    try:
        with open(path) as f:
            return f.read()
    except OSError as error:
        raise Unknown(f"no source: {error}") from None


def plan_of_script(path, function=None):
    text = text_of(path)
    plan = PLAN.search(text, text.index(f"\n{function}() {{\n") if function else 0)
    if not plan:
        raise Unknown(f'{os.path.basename(path)} has no line "plan N"')
    return int(plan[2] or plan[1]) if os.environ.get("TEST_SHORT") == "1" else int(plan[1])


def corpus_of(tests):
    return [line.split() for line in text_of(f"{tests}/sim/corpus.txt").splitlines() if line.strip() and line[0] != "#"]


def unit_names(source, program):
    """Criterion makes three symbols of each test; macros that make several tests are seen so, too."""
    try:
        symbols = subprocess.run(["nm", "--defined-only", program], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unknown(f"the program's symbols: {error}") from None
    symbols = {line.split()[-1] for line in symbols.splitlines()}
    names = {s[:-4] for s in symbols if s.endswith("_ptr") and {s[:-4] + "_jmp", s[:-4] + "_meta"} <= symbols}
    missing = {"_".join(pair) for pair in re.findall(r"^Test\((\w+), (\w+)", source, re.MULTILINE)} - names
    if missing:
        raise Unknown("not in the program: " + ", ".join(sorted(missing)))
    return names


def cases(tests, suite, name, program):
    """(least, most, names or None) of the cases of a test."""
    if suite == "house" and name == "mutants":
        count = len(re.findall(r"^== ", text_of(f"{tests}/mutation/mutants.txt"), re.MULTILINE))
    elif suite == "unit" and name == "harness":
        count = plan_of_script(f"{tests}/harness.sh")
    elif suite == "unit":
        names = unit_names(text_of(f"{tests}/unit/test_{name}.c"), program)
        return len(names), len(names), names
    elif suite == "sim":
        count = len(corpus_of(tests))
        if name != "corpus":
            short = os.environ.get("TEST_SHORT") == "1"
            return 1 if short else len({line[0] for line in corpus_of(tests)}), float("inf"), None
    elif (suite, name) == ("nccl", "layout"):
        count = text_of(f"{tests}/nccl/layout.def").count("\nALIGNMENT(")
    elif suite == "nccl" and name in ("calls", "devices", "plugin_gpu", "threads", "tuner"):
        count = len(re.findall(r"^    \{\"", text_of(f"{tests}/nccl/{name}.c").split(" CASES[] = {")[1], re.MULTILINE))
    elif suite == "nccl" and name.startswith("nccl_"):
        count = plan_of_script(f"{tests}/nccl/nccl.sh", name[len("nccl_"):])
    elif suite == "tcp":
        count = plan_of_script(f"{tests}/integration/{name[len('tcp-'):]}.sh")
    elif suite == "stress" or (suite == "mem" and name != "gpu") or (suite, name) == ("nccl", "no_memory"):
        name = "gpu_onesided" if name.startswith("gpu_onesided_") else name
        program, _, kind = name.partition("_failures_")
        source, prefix = (f"{program}_failures", kind.upper() + "_") if kind else (name, "")
        found = re.search(rf"\b{prefix}CASES = (\d+)", text_of(f"{tests}/{suite}/{source}.c"))
        if not found:
            raise Unknown("its source has no CASES = N")
        count = int(found[1])
    else:
        count = plan_of_script(f"{tests}/" + SCRIPTS.get(f"{suite}/{name}", f"{suite}/{name}.sh"))
    return count, count, None


def all_tests(tests, suite):
    """The names of the tests that the folder of a suite has."""
    def names(pattern, start="", end=2):
        return {os.path.basename(path)[len(start):-end] for path in glob.glob(f"{tests}/{suite}/{pattern}")}

    if suite == "unit":
        return names("test_*.c", "test_") | ({"harness"} if os.path.exists(f"{tests}/harness.sh") else set())
    if suite == "stress":
        return names("stress_*.c")
    if suite in ("house", "integration", "onesided"):
        return (names("*.sh", end=3) - {"lib"}) | ({"mutants"} if suite == "house" else set())
    if suite == "nccl":
        parts = re.findall(r"^#   nccl\.sh (\w+)", text_of(f"{tests}/nccl/nccl.sh"), re.MULTILINE)
        return {"layout", "calls", "devices", "no_memory", "plugin_gpu", "threads", "tuner", "real"} | {f"nccl_{part}" for part in parts}
    gpus = {f"gpu_failures_{kind}" for kind in ("cuda", "hip")} | {f"gpu_onesided_{kind}" for kind in ("cuda", "hip", "mixed")}
    return {"sim": {"corpus", "sim"}, "mem": {"gpu", "headers"} | gpus, "vm": {"vm"}}.get(suite, set())
