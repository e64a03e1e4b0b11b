#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the library in named ways (mutants.txt) and shows that the simulator catches each.

usage: tests/mutation.sh [--check] [--list] [--jobs N] [--build DIR] [NAME...]

Builds the simulator once in build-mutation (-O1, assertions on), and sees that it passes unbroken what is to
catch the mutants. A mutant is one source file compiled anew and
linked before the archive that holds the original. It is caught when a scenario that mutants.txt names for
it fails: an assertion, a checker, a hang. When none does, all scenarios are tried, and what catches it
then is told, but it counts as missed: the file is to say what catches it. A mutant whose old lines are not in the
source exactly once fails. Last line: "N passed, N failed".

--check only sees that each applies and compiles; --build takes another configured build directory for that.
"""
import argparse
import concurrent.futures
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
SECONDS_MAX = 100  # for one scenario
MEMORY_MAX = 4 << 30  # bytes: a mutant may queue without end
SEARCH_SEEDS = (2, 20)  # of every scenario, when what should catch a mutant does not
REPLAY = re.compile(r"--scenario (\S+).*--seed (\d+)")


class Mutant:
    """name, why, file, hunks [(old, new)], runs [(scenario, seeds)]"""

    def __init__(self, name):
        self.name, self.why, self.file, self.hunks, self.runs = name, "", None, [], []

    def text(self):
        with open(os.path.join(SOURCE, self.file)) as f:
            text = f.read()
        for old, new in self.hunks:
            count = text.count(old)
            if count != 1:
                raise ValueError(f"{self.file} has these lines {count} times:\n{old}")
            text = text.replace(old, new)
        return text


def read_mutants(path):
    """
    == NAME: WHY
    file PATH
    caught SCENARIO SEEDS       (any number of them)
    then hunks as of a diff without line numbers, "@@" between two
    """
    mutants, old, new = [], [], []

    def end_hunk():
        if old or new:
            mutants[-1].hunks.append(("".join(old), "".join(new)))
        old.clear()
        new.clear()

    with open(path) as f:
        for number, line in enumerate(f, 1):
            if line.startswith("== "):
                end_hunk()
                name, why = line[3:].split(":", 1)
                mutants.append(Mutant(name))
                mutants[-1].why = why.strip()
            elif line.startswith("file "):
                mutants[-1].file = line.split()[1]
            elif line.startswith("caught "):
                _, scenario, seeds = line.split()
                mutants[-1].runs.append((scenario, int(seeds)))
            elif line.startswith("@@"):
                end_hunk()
            elif line[0] in " -+":
                if line[0] != "+":
                    old.append(line[1:])
                if line[0] != "-":
                    new.append(line[1:])
            elif line.strip() and not line.startswith("#"):
                raise ValueError(f"{path}:{number}: {line}")
    end_hunk()
    return mutants


class Build:
    """A configured Meson build directory: how a file is compiled, how the simulator is linked."""

    def __init__(self, directory):
        self.directory = directory
        with open(os.path.join(directory, "compile_commands.json")) as f:
            self.commands = {}
            for entry in json.load(f):
                path = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
                path = os.path.relpath(path, SOURCE)
                if path not in self.commands or "SIM_SEAM" in entry["command"]: # as the simulator has it
                    self.commands[path] = entry["command"]

    def run(self, words, what, **more):
        done = subprocess.run(words, cwd=self.directory, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, **more)
        if done.returncode:
            raise ValueError(f"does not {what}:\n" + done.stdout[-2000:])
        return done.stdout

    def compile_words(self, path):
        words = shlex.split(self.commands[path])
        for option in ("-o", "-MF", "-MQ"):
            at = words.index(option)
            del words[at:at + 2]
        words = [w for w in words[:words.index("-c")] if w != "-MD" and not re.match("-O.", w)]
        return words + ["-O1", "-w"]

    def compile(self, mutant, folder):
        """Compiles the mutated file into the folder, a header with all of the core. Returns the objects."""
        mutated = os.path.join(folder, mutant.file)
        os.makedirs(os.path.dirname(mutated))
        with open(mutated, "w") as f:
            f.write(mutant.text())
        if mutant.file.endswith(".c"):
            sources = {mutant.file: mutated}
        else:
            sources = {path: os.path.join(SOURCE, path) for path in self.commands if path.startswith("engine/core/")}
        for path, source in sources.items():
            words = self.compile_words(path)
            words += ["-iquote", os.path.join(folder, "engine"), "-iquote", os.path.join(SOURCE, os.path.dirname(path))]
            self.run(words + ["-c", source, "-o", os.path.join(folder, os.path.basename(path) + ".o")], "compile")
        return [os.path.join(folder, os.path.basename(path) + ".o") for path in sources]

    def check(self, mutant):
        """Whether it would compile: of a header, as a file by itself."""
        path = mutant.file if mutant.file in self.commands else "engine/core/wire.c"
        words = self.compile_words(path)
        words += ["-iquote", os.path.join(SOURCE, os.path.dirname(mutant.file))]
        self.run(words + ["-fsyntax-only", "-x", "c", "-"], "compile", input=mutant.text())

    def link(self, objects, output):
        """The simulator, with these objects before the archive that has the originals of them."""
        words = shlex.split(self.run(["ninja", "-t", "commands", "tests/sim"], "tell how it links").splitlines()[-1])
        words[words.index("-o") + 1] = output
        archive = next(i for i, word in enumerate(words) if word.endswith(".a"))
        words[archive:archive] = objects
        self.run(words, "link")


def simulate(program, scenario, seeds):
    """(scenario, seed) that failed, or None."""
    limit = (MEMORY_MAX, MEMORY_MAX)
    running = subprocess.Popen([program, "--seeds", str(seeds), "--jobs", "1", "--scenario", scenario], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, limit))
    try:
        output, _ = running.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # its workers too
        running.communicate()
        return scenario, "hangs"
    if running.returncode == 0:
        return None
    for line in output.splitlines():
        replay = REPLAY.search(line) if line.startswith("not ok") else None
        if replay:
            return replay.groups()
    return scenario, "dies"  # it is there: the unbroken run passed it


def try_mutant(build, mutant):
    """(caught, what is to be told)"""
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = os.path.join(folder, "sim")
            build.link(build.compile(mutant, folder), program)
            for scenario, seeds in mutant.runs:
                found = simulate(program, scenario, seeds)
                if found:
                    return True, "%s, seed %s" % found
            scenarios = build.run([program, "--list"], "list its scenarios").split()
            for seeds in SEARCH_SEEDS:
                for scenario in scenarios:
                    found = simulate(program, scenario, seeds)
                    if found:
                        return False, "not by what mutants.txt names, but by %s, seed %s" % found
            return False, "SURVIVED"
        except ValueError as error:
            return False, str(error)


def try_unbroken(build, mutants):
    """All that is to catch a mutant passes without one."""
    most = {}
    for mutant in mutants:
        for scenario, seeds in mutant.runs:
            most[scenario] = max(seeds, most.get(scenario, 0))
    for scenario, seeds in most.items():
        found = simulate(os.path.join(build.directory, "tests", "sim"), scenario, seeds)
        if found:
            return False, "%s, seed %s fails without any mutant" % found
    return True, f"{sum(most.values())} seeds of {len(most)} scenarios pass"


def check_mutant(build, mutant):
    try:
        build.check(mutant)
        return True, "applies and compiles"
    except (ValueError, KeyError) as error:
        return False, str(error)


def prepare(directory):
    """The unbroken simulator, at -O1."""
    if not os.path.exists(os.path.join(directory, "build.ninja")):
        subprocess.run(["meson", "setup", directory, SOURCE, "-Doptimization=1", "-Db_ndebug=false"],
                       stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["ninja", "-C", directory, "tests/sim"], stdout=subprocess.DEVNULL, check=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0], description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    mutants = read_mutants(os.path.join(HERE, "mutants.txt"))
    unknown = set(arguments.names) - {m.name for m in mutants}
    if unknown:
        sys.exit(f"no such mutant: {' '.join(sorted(unknown))}")
    mutants = [m for m in mutants if not arguments.names or m.name in arguments.names]
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name:44} {mutant.why}")
        return
    directory = os.path.abspath(arguments.build or os.path.join(SOURCE, "build-mutation"))
    if not (arguments.check and arguments.build):
        prepare(directory)
    build = Build(directory)
    jobs = [(m.name, check_mutant if arguments.check else try_mutant, m) for m in mutants]
    if not arguments.check:
        jobs.insert(0, ("(unbroken)", try_unbroken, mutants))
    passed = failed = 0

    def run(job):
        start = time.monotonic()
        return job[1](build, job[2]) + (time.monotonic() - start,)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for job, (good, told, seconds) in zip(jobs, pool.map(run, jobs)):
            print(f"{'ok' if good else 'NOT OK':6} {job[0]:44} {seconds:5.1f} s  {told}", flush=True)
            passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
