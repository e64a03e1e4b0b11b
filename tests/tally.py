#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the test cases of a Meson run.

usage: tally.py PART TESTLOG TESTS FAILURES SUITE...

Reads Meson's testlog.json: tests with TAP output count case by case, others as one each. Prints one
line per test and the log of those that failed, and as its last line "TALLY passed failed skipped".
Appends each case that failed to FAILURES, with the end of what it printed.
TESTS is the folder of the tests' sources. A test of SUITE... that has run other cases than its source says
(expected.py), or none, has failed. One that was not run at all is a skip, PART/TEST/absent.
With CI=true a skip that TESTS/allowed-skips.txt does not list ("PART/TEST/CASE" patterns, one a line) is a
failure.
"""
import fnmatch
import json
import os
import re
import sys

import expected

CASE = re.compile(r"^(not )?ok(?=\s|$)\s*\d*\s*-?\s*(.*?)\s*(?:\(\d+\.\d+s\))?\s*(?:#\s*(skip|todo)\b\s*(.*))?$", re.IGNORECASE)
TOTAL = re.compile(r"^(\d+) passed, (\d+) failed$")
BAD = re.compile(r"^not ok[ :]+(.*)$", re.MULTILINE)  # of a program with a TOTAL
PLAN = re.compile(r"^1\.\.(\d+)\s*(?:#\s*skip\b\s*(.*))?", re.IGNORECASE)
LOG_LINES = 200
CASE_LINES = 40


def cases_of(test):
    """[(outcome, name, why)] of one test, as its output says."""
    result, output = test["result"], test.get("stdout", "")
    cases, planned, whole_skip, total = [], None, None, None
    for line in output.splitlines():
        plan = PLAN.match(line)
        if plan:
            planned, whole_skip = int(plan[1]), plan[2]
        total = TOTAL.match(line) or total
        case = CASE.match(line)
        if case:
            outcome = "skip" if case[3] and case[3].lower() == "skip" else "fail" if case[1] else "pass"
            cases.append((outcome, case[2] or "?", case[4] or ""))
    if total:  # a program that ends with a count in place of a plan
        named = BAD.findall(output)
        cases = [("pass", "", "")] * int(total[1])
        cases += [("fail", named[i] if i < len(named) else "see the log", "") for i in range(int(total[2]))]
        planned = len(cases)
    if planned is None and not cases:  # not TAP
        outcome = {"OK": "pass", "SKIP": "skip", "EXPECTEDFAIL": "pass"}.get(result, "fail")
        return [(outcome, "exit status", "")]
    if planned == 0 and whole_skip is not None:
        return [("skip", "all", whole_skip)]
    if planned is None:
        cases.append(("fail", f"ended early ({result})", ""))
    elif planned != len(cases):
        cases.append(("fail", f"{planned} cases planned, {len(cases)} seen", ""))
    elif result not in ("OK", "SKIP") and not any(c[0] == "fail" for c in cases):
        cases.append(("fail", f"ended with {result}", ""))
    return cases


def checked_cases_of(tests, suites, test):
    """As cases_of(), and a failure where these are others than the source says."""
    cases = cases_of(test)
    if [c[:2] for c in cases] == [("skip", "all")]:
        return cases
    # behind the words of a wrapper
    program = next((word for word in test["command"] if os.path.basename(word).startswith("test_")), test["command"][0])
    suite, name = test["name"].split(" / ") if " / " in test["name"] else (suites[0], test["name"])
    try:
        least, most, names = expected.cases(tests, suite.split(":")[-1], name, program)
    except expected.Unknown as error:
        return cases + [("fail", "what it must run", str(error))]
    ran = [c for c in cases if c[:2] != ("pass", "exit status")]
    seen = {c[1].replace("::", "_") for c in ran}
    if names is not None and not names <= seen:
        cases.append(("fail", "not run: " + ", ".join(sorted(names - seen)), ""))
    elif not max(least, 1) <= len(ran) <= most:
        cases.append(("fail", f"{len(ran)} cases were run, its source says {max(least, 1)}", ""))
    return cases


def own_lines(test, name):
    """The end of what a failed case printed: behind its line in TAP; else of all that the test printed."""
    output = test.get("stdout", "").splitlines()
    for number, line in enumerate(output):
        case = CASE.match(line)
        if case and case[1] and case[2] == name:
            end = next((i for i in range(number + 1, len(output)) if CASE.match(output[i]) or PLAN.match(output[i])),
                       len(output))
            if end > number + 1:
                return output[number + 1:end][-CASE_LINES:]
    return (output + test.get("stderr", "").splitlines())[-CASE_LINES:]


def main():
    part, testlog, sources, failures_file, *suites = sys.argv[1:]
    strict = os.environ.get("CI", "") == "true"
    with open(f"{sources}/allowed-skips.txt") as f:
        allowed = [line.split("#")[0].strip() for line in f]
    total = {"pass": 0, "fail": 0, "skip": 0}

    def listed(where):
        return any(p and fnmatch.fnmatchcase(where, p) for p in allowed)

    def failed(what, lines=()):
        with open(failures_file, "a") as failures:
            print("FAILED " + what, *("  | " + line for line in lines), sep="\n", file=failures)

    with open(testlog) as f:
        tests = [json.loads(line) for line in f if line.strip()]
    for name in sorted(set().union(*(expected.all_tests(sources, suite) for suite in suites)) -
                       {test["name"].split(" / ")[-1] for test in tests}):
        where = f"{part}/{name}/absent"
        if listed(where):
            continue
        print(f"{where}: it was not run")
        total["fail" if strict else "skip"] += 1
        if strict:
            failed(f"{where}: it was not run")
    if not tests:
        print(f"{part}: no tests found")
        failed(f"{part}: no tests found")
        total["fail"] += 1
    for test in sorted(tests, key=lambda t: t["name"]):
        name = test["name"].split(" / ")[-1]
        count = {"pass": 0, "fail": 0, "skip": 0}
        notes, told = [], None
        for outcome, case, why in checked_cases_of(sources, suites, test):
            if outcome == "skip":
                where = f"{part}/{name}/{case}"
                if strict and not listed(where):
                    outcome = "fail"
                    notes.append(f"  SKIP NOT ALLOWED {where}: {why}")
                    failed(f"{where}: skipped, which is not allowed: {why}")
                else:
                    notes.append(f"  skipped {where}: {why}")
            elif outcome == "fail":
                where = f"{part}/{name}/{case}" + (f": {why}" if why else "")
                notes.append(f"  FAILED {where}")
                lines = own_lines(test, case)
                failed(where, lines if lines != told else ())  # once, where all that the test printed is told
                told = lines
            count[outcome] += 1
        for outcome in total:
            total[outcome] += count[outcome]
        print(f"{part}/{name}: {count['pass']} passed, {count['fail']} failed, "
              f"{count['skip']} skipped ({test['duration']:.1f} s)")
        print("\n".join(notes), end="\n" if notes else "")
        if count["fail"]:
            log = (test.get("stdout", "") + test.get("stderr", "")).splitlines()
            print(f"  ---- log of {part}/{name} (the last {LOG_LINES} of {len(log)} lines)")
            print("\n".join("  | " + line for line in log[-LOG_LINES:]))
    print("TALLY", total["pass"], total["fail"], total["skip"])


main()
