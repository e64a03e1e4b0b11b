#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the product in named ways (mutants.txt) and shows that the tests catch each.

usage: tests/mutation.sh [--check | --list] [--jobs N] [--changed BASE] [--minutes M] [--notes FILE] [--search] [NAME...]

Each worker has a copy of the source in build-mutation/worker-N, and a build (-O1, assertions on), which the next run
uses again unless this one is interrupted. One run at a time. Mutants go by file, so that a file is rarely built only to
be whole again. For a mutant a worker edits the copy, builds what is named to catch the mutant, and runs that. The mutant is caught when a simulator
scenario, a test of Meson's or a stress program that mutants.txt names for it fails: an assertion, a check, a hang. The
test stops at its first failure. A stress program is built as the suite does it, with ThreadSanitizer and delays at marked points. A mutant that
nothing named catches counts as missed, and so does one whose old lines are not in the source exactly once. The tests
that are named run once without a mutant first, and must pass. Last line: "N passed, N failed".

--check         only sees that each applies and compiles; --build takes a configured build directory for that
--changed BASE  only mutants of files that differ from the commit BASE
--minutes M     begins no further mutant after M minutes, in an order drawn from the commit; tells how many are left
--notes FILE    adds a line for each mutant (name, result, commit, seconds, what caught it), and leaves out what FILE says was
                caught: a run that was ended goes on
--search        tells which scenario or unit test catches a mutant that what is named misses
"""
import argparse
import concurrent.futures
import fcntl
import json
import os
import queue
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
WORKERS = os.path.join(SOURCE, "build-mutation")
SECONDS_MAX = 100  # for one scenario
TEST_SECONDS_MAX = 300  # for one test of Meson's, or one run of a stress program
MEMORY_MAX = 4 << 30  # bytes: a mutant may queue without end
SEARCH_SEEDS = 2  # of every scenario
BUILD = ["-Doptimization=1", "-Ddebug=false", "-Db_ndebug=false"]
TSAN_BUILD = ["-Doptimization=1", "-Db_sanitize=thread", "-Drace_points=true"]  # as in run.sh
TSAN_WRAPPER = ["setarch", "-R"]  # older ThreadSanitizers do not cope with all of today's address randomisation
FAIL_FAST = {"CRITERION_FAIL_FAST": "1", "TEST_FAIL_FAST": "1"}  # one failure is enough
LIKE_MESON = {"MALLOC_PERTURB_": "165"}  # what is allocated or freed has other bytes
SKIPPED = 77  # exit status of a test that cannot run here
REPLAY = re.compile(r"--scenario (\S+).*--seed (\d+)")


class Mutant:
    """name, why, file, hunks [(old, new)], catchers [("sim", scenario, seeds), ("test", name) or ("stress", program, runs)]"""

    def __init__(self, name, why):
        self.name, self.why, self.file, self.hunks, self.catchers = name, why, None, [], []

    def text(self, text=None):
        """The file with the mutant. Raises ValueError."""
        text = text or original_of(self)
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
    caught sim SCENARIO SEEDS   (any number of catchers; the cheapest first)
    caught test NAME            (of `meson test --list`)
    caught stress PROGRAM RUNS  (under ThreadSanitizer, each run with a seed of its own)
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
            words = line.split()
            if line.startswith("== "):
                end_hunk()
                name, why = line[3:].split(":", 1)
                mutants.append(Mutant(name, why.strip()))
            elif line.startswith("file "):
                mutants[-1].file = words[1]
            elif line.startswith("caught sim ") and len(words) == 4:
                mutants[-1].catchers.append(("sim", words[2], int(words[3])))
            elif line.startswith("caught stress ") and len(words) == 4:
                mutants[-1].catchers.append(("stress", words[2], int(words[3])))
            elif line.startswith("caught test ") and len(words) == 3:
                mutants[-1].catchers.append(("test", words[2]))
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
    names = [mutant.name for mutant in mutants]
    for mutant in mutants:
        if names.count(mutant.name) > 1 or not mutant.file or not mutant.hunks or not mutant.catchers:
            raise ValueError(f"{path}: {mutant.name} is there twice, or has no file, no lines, or nothing that catches it")
    return mutants


def read_notes(path):
    """The names of what was well: mutants that were caught, and what caught them without any."""
    if not path or not os.path.exists(path):
        return set()
    with open(path) as f:
        rows = [line.split("\t") for line in f]
    return {row[0] for row in rows if len(row) > 1 and row[1] == "caught"}


def git(*words):
    """Its output; None in an unpacked release, without git, and where git refuses the checkout of another user."""
    try:
        done = subprocess.run(("git", "-C", SOURCE) + words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def source_files():
    """All that belongs to the source; without git all but what builds have made (.gitignore)."""
    listed = git("ls-files", "-z", "-co", "--exclude-standard")
    if listed is not None:
        return [f for f in listed.split("\0") if f and os.path.isfile(os.path.join(SOURCE, f))]
    files = []
    for folder, below, names in os.walk(SOURCE):
        below[:] = [name for name in below
                    if name != "__pycache__" and not (folder == SOURCE and name.startswith("build"))]
        files += [os.path.relpath(os.path.join(folder, name), SOURCE) for name in names]
    return files


# ---- whether mutants apply and compile -------------------------------------------------------


def compile_commands(directory):
    with open(os.path.join(directory, "compile_commands.json")) as f:
        entries = json.load(f)
    return {os.path.relpath(os.path.normpath(os.path.join(e["directory"], e["file"])), SOURCE): e["command"]
            for e in entries}


def compile_text(file, text, directory, commands):
    """A header as a file by itself. Raises ValueError."""
    if not file.endswith((".c", ".h")):
        return
    path = file if file in commands else "engine/core/wire.c"
    words = shlex.split(commands[path])
    for option in ("-o", "-MF", "-MQ"):
        at = words.index(option)
        del words[at:at + 2]
    words = [word for word in words[:words.index("-c")] if word != "-MD"]
    words += ["-w", "-iquote", os.path.join(SOURCE, os.path.dirname(file)), "-fsyntax-only", "-x", "c", "-"]
    done = subprocess.run(words, cwd=directory, text=True, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise ValueError("does not compile:\n" + done.stdout[-2000:])


def apart(mutants):
    """[[mutant of a file]]: those of a group change other lines each. What does not apply is left out."""
    groups = []
    for mutant in mutants:
        try:
            mutant.text()
        except (ValueError, OSError):
            continue
        original = original_of(mutant)
        spans = [(original.find(old), original.find(old) + len(old)) for old, _ in mutant.hunks]
        for file, taken, group in groups:
            if file == mutant.file and all(end <= a or b <= start for start, end in spans for a, b in taken):
                break
        else:
            group, taken = [], []
            groups.append((mutant.file, taken, group))
        group.append(mutant)
        taken += spans
    return [group for _, _, group in groups]


def original_of(mutant):
    with open(os.path.join(SOURCE, mutant.file)) as f:
        return f.read()


def check(group, directory, commands):
    """The mutants that do not compile, with why. All of them at once, and one by one where that fails."""
    text = original_of(group[0])
    try:
        for mutant in group:
            text = mutant.text(text)
        compile_text(group[0].file, text, directory, commands)
        return {}
    except ValueError:
        bad = {}
    for mutant in group:
        try:
            compile_text(mutant.file, mutant.text(), directory, commands)
        except ValueError as error:
            bad[mutant.name] = str(error)
    return bad


# ---- a worker --------------------------------------------------------------------------------


def only_run():
    """
    The workers are ours until what is returned is closed. All that is started inherits it (close_fds=False): a test that
    an interrupted run has left behind may still write there.
    """
    os.makedirs(WORKERS, exist_ok=True)
    lock = open(os.path.join(WORKERS, "lock"), "w")
    os.set_inheritable(lock.fileno(), True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"another run, or a test that an interrupted one has left, works in {WORKERS} (fuser {lock.name})")
    return lock


class Worker:
    """A copy of the source, and its build. What was not left by end() may be half of anything, and is made anew."""

    def __init__(self, number):
        self.source = os.path.join(WORKERS, f"worker-{number}")
        self.build = os.path.join(self.source, "build")
        self.tsan = os.path.join(self.source, "build-tsan")
        self.begun = self.source + ".begun"
        if os.path.exists(self.begun):
            print(f"worker-{number} is made anew: the last run was interrupted", flush=True)
            shutil.rmtree(self.source, ignore_errors=True)
        os.makedirs(self.source, exist_ok=True)
        with open(self.begun, "w"):
            pass
        self.copy_source()
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            self.run(["meson", "setup", self.build, self.source] + BUILD, "be set up")
        self.tests, self.targets = {}, {}
        self.ninja("build.ninja")
        for test in json.loads(self.run(["meson", "introspect", self.build, "--tests"], "tell its tests")):
            program, *words = test["cmd"]
            built = [os.path.relpath(program, self.build)] if program.startswith(self.build + "/") else []
            if built:  # Meson names what is built for its arguments from the build directory
                built += [word for word in words if re.fullmatch(r"\w[\w.-]*/[\w./-]+", word)]
            if built or not self.targets.get(test["name"]):  # of a program and a script with one name, the program
                self.tests[test["name"]], self.targets[test["name"]] = test, built

    def end(self):
        os.unlink(self.begun)

    def copy_source(self):
        """What has the same content keeps its time, so that it is not compiled again."""
        files = source_files()
        for name in files:
            source, copy = os.path.join(SOURCE, name), os.path.join(self.source, name)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            if os.path.exists(copy):
                with open(source, "rb") as a, open(copy, "rb") as b:
                    if a.read() == b.read():
                        continue
            shutil.copy(source, copy)
        known = set(files)
        for folder, below, names in os.walk(self.source):
            if folder == self.source:
                below[:] = [name for name in below if name not in ("build", "build-tsan")]
            for name in names:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.source) not in known and "__pycache__" not in path:
                    os.unlink(path)

    def run(self, words, what, **more):
        done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, close_fds=False, **more)
        if done.returncode:
            raise ValueError(f"does not {what}:\n" + done.stdout[-2000:])
        return done.stdout

    def ninja(self, *targets):
        self.run(["ninja", "-j", "1", "-C", self.build, *targets], "build")

    def write(self, mutant, text):
        with open(os.path.join(self.source, mutant.file), "w") as f:
            f.write(text)

    def catch(self, catcher):
        """What failed, or None."""
        if catcher[0] == "sim":
            self.ninja("tests/sim")
            return simulate(os.path.join(self.build, "tests", "sim"), catcher[1], catcher[2])
        if catcher[0] == "stress":
            return self.stress(catcher[1], catcher[2])
        name = catcher[1]
        if name not in self.tests:
            raise ValueError(f"there is no test {name} (meson test --list)")
        test = self.tests[name]
        self.ninja(*self.targets[name])
        done = within(test["cmd"], TEST_SECONDS_MAX, cwd=test["workdir"] or self.build,
                      env=dict(os.environ, **LIKE_MESON, **FAIL_FAST, **test["env"]))
        return f"{name}, which hangs" if done is None else name if done not in (0, SKIPPED) else None

    def stress(self, name, runs):
        if not os.path.exists(os.path.join(self.tsan, "build.ninja")):
            self.run(["meson", "setup", self.tsan, self.source] + TSAN_BUILD, "be set up")
        self.run(["ninja", "-j", "1", "-C", self.tsan, f"tests/{name}"], "build")
        for seed in range(1, runs + 1):
            done = within([*TSAN_WRAPPER, os.path.join(self.tsan, "tests", name), str(seed)], TEST_SECONDS_MAX,
                          env=dict(os.environ, TSAN_OPTIONS="halt_on_error=1"))
            if done != 0:
                return f"{name}, seed {seed}" + (", which hangs" if done is None else "")
        return None

    def search(self):
        self.ninja("tests/sim")
        program = os.path.join(self.build, "tests", "sim")
        for scenario in self.run([program, "--list"], "list its scenarios").split():
            found = simulate(program, scenario, SEARCH_SEEDS)
            if found:
                return found
        for name, test in self.tests.items():
            if "unit" in test["suite"][0]:
                found = self.catch(("test", name))
                if found:
                    return found
        return None


def within(words, seconds, **more):
    """The exit status; None: time was up."""
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                               close_fds=False, **more)
    try:
        running.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return None
    return running.returncode


def simulate(program, scenario, seeds):
    """The seed that failed, in words, or None."""
    limit = (MEMORY_MAX, MEMORY_MAX)
    running = subprocess.Popen([program, "--seeds", str(seeds), "--jobs", "1", "--scenario", scenario], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                               close_fds=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, limit))
    try:
        output, _ = running.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)  # its workers too
        running.communicate()
        return f"{scenario}, which hangs"
    if running.returncode == 0:
        return None
    for line in output.splitlines():
        replay = REPLAY.search(line) if line.startswith("not ok") else None
        if replay:
            return "%s, seed %s" % replay.groups()
    return f"{scenario}, which dies"  # it is there: the unbroken run passed it


# ---- all of them -----------------------------------------------------------------------------


def try_unbroken(worker, catcher):
    found = worker.catch(catcher)
    return found is None, "passes" if found is None else f"{found} fails without any mutant"


def try_mutant(worker, mutant, search):
    """(caught, what is to be told)"""
    original = None
    try:
        text, original = mutant.text(), original_of(mutant)
        worker.write(mutant, text)
        for catcher in mutant.catchers:
            found = worker.catch(catcher)
            if found:
                return True, found
        found = worker.search() if search else None
        return False, f"not by what is named, but by {found}" if found else "SURVIVED"
    except ValueError as error:
        return False, str(error)
    finally:
        if original is not None:
            worker.write(mutant, original)


def unbroken_catchers(mutants):
    """Each test once, each scenario and stress program once with the most seeds."""
    most = {}
    for mutant in mutants:
        for catcher in mutant.catchers:
            key, seeds = catcher[:2], catcher[2] if len(catcher) > 2 else 0
            most[key] = max(seeds, most.get(key, 0))
    return [key + ((seeds,) if key[0] != "test" else ()) for key, seeds in most.items()]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0], description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--changed", metavar="BASE")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--notes", metavar="FILE")
    parser.add_argument("--build")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    try:
        mutants = read_mutants(os.path.join(HERE, "mutants.txt"))
    except ValueError as error:
        sys.exit(str(error))
    unknown = set(arguments.names) - {m.name for m in mutants}
    if unknown:
        sys.exit(f"no such mutant: {' '.join(sorted(unknown))}")
    mutants = [m for m in mutants if not arguments.names or m.name in arguments.names]
    if arguments.changed:
        changed = git("diff", "--name-only", arguments.changed)
        if changed is None:
            sys.exit(f"--changed {arguments.changed}: git does not know this commit here")
        changed = set(changed.split())
        mutants = [m for m in mutants if m.file in changed]
    noted = read_notes(arguments.notes)
    mutants = [m for m in mutants if m.name not in noted]
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name:44} {mutant.why}")
        return
    passed = failed = 0
    commit = (git("rev-parse", "HEAD") or "unknown").strip()
    deadline = time.monotonic() + arguments.minutes * 60 if arguments.minutes else None

    def tell(good, name, seconds, told):
        nonlocal passed, failed
        print(f"{'ok' if good else 'NOT OK':6} {name:44} {seconds:5.1f} s  {told}", flush=True)
        passed, failed = passed + good, failed + (not good)
        if arguments.notes:
            with open(arguments.notes, "a") as f:
                print(name, "caught" if good else "missed", commit[:8], f"{seconds:.1f}", told.split("\n")[0], sep="\t", file=f)

    if arguments.check:
        worker = None
        if not arguments.build:
            lock, worker = only_run(), Worker(0)
        directory = os.path.abspath(arguments.build) if arguments.build else worker.build
        commands = compile_commands(directory)

        bad = {}
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for found in pool.map(lambda group: check(group, directory, commands), apart(mutants)):
                bad.update(found)
        for mutant in mutants:
            try:
                mutant.text()
            except (ValueError, OSError) as error:
                bad[mutant.name] = str(error)
            tell(mutant.name not in bad, mutant.name, 0.0, bad.get(mutant.name, "applies and compiles"))
        if worker:
            worker.end()
    elif mutants:
        mutants.sort(key=lambda mutant: (mutant.file, mutant.catchers))
        if deadline:
            random.Random(commit).shuffle(mutants)
        lock, workers = only_run(), queue.Queue()
        for number in range(max(1, min(arguments.jobs, len(mutants)))):
            workers.put(Worker(number))
        unbroken = set(noted)

        def job(task):
            name, function, *rest = task
            if deadline and time.monotonic() > deadline:
                return None
            worker, start = workers.get(), time.monotonic()
            try:
                return function(worker, *rest) + (name, time.monotonic() - start)
            finally:
                workers.put(worker)

        # of a run that may end early, a catcher runs unbroken right before the first mutant that needs it
        groups = [[m] for m in mutants] if deadline or arguments.notes else [mutants]
        left = 0
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            tasks = []
            for group in groups:
                for catcher in unbroken_catchers(group):
                    name = " ".join(map(str, ("(unbroken)",) + catcher))
                    if name not in unbroken:
                        unbroken.add(name)
                        tasks.append((name, try_unbroken, catcher))
                tasks += [(m.name, try_mutant, m, arguments.search) for m in group]
            for result in pool.map(job, tasks):
                if result:
                    tell(result[0], result[2], result[3], result[1])
                else:
                    left += 1
        while not workers.empty():
            workers.get().end()
        if left:
            print(f"no time for {left} more")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
