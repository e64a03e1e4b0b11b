#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the man pages, from what is written elsewhere, so that they cannot say something else.

    man.py --names HEADER                       prints the names of the public functions
    man.py --library HEADER COUNTERS VERSION DIRECTORY
                                                uccl-engine.3, and for each function a page that leads to it
    man.py --parameters PAGE VERSION FILE       uccl-engine.conf.5, from docs/parameters.md
    man.py --tool PROGRAM VERSION FILE          a tool's page, from what it prints with --help

A public function without a comment in the header is an error.
"""
import os
import re
import subprocess
import sys

PROJECT = "libuccl-engine"
PAGES = {"transport_test": 1, "p2p_bench": 1, "uccl_info": 1, "uccl-engine": 3, "uccl-engine.conf": 5}


# ---- roff -----------------------------------------------------------------------------------------------

def escaped(text):
    return text.replace("\\", "\\e").replace("-", "\\-")


def roff(text):
    """A line of running text: names of calls and what Markdown marks as code are bold."""
    text = escaped(text)
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fP", text)
    text = re.sub(r"\b(uccl_\w+)\(\)", r"\\fB\1\\fP()", text)
    return "\\&" + text if text[:1] in (".", "'") else text


def head(name, section, version, what):
    return [f".TH {escaped(name.upper())} {section} \"\" \"{PROJECT} {version}\" \"{PROJECT}\"", ".nh", ".ad l", ".ss 12 0", ".SH NAME",
            f"{escaped(name)} \\- {roff(what)}"]


def see_also(name):
    others = sorted((section, page) for page, section in PAGES.items() if page != name)
    return [".SH SEE ALSO", *(f".BR {escaped(page)} ({section})" + ("," if i + 1 < len(others) else "")
                              for i, (section, page) in enumerate(others))]


def verbatim(lines):
    return [".PP", ".RS 4", ".nf", *("\\&" + escaped(line) for line in lines), ".fi", ".RE"]


def paragraphs(lines):
    """Lines of a comment: '- ' begins an item; after a full stop an indented line, the end of indented ones, or an
    error code begins a paragraph."""
    out, item, ended, indented = [], False, False, False
    for line in lines:
        text = line.strip()
        if text.startswith("- "):
            out.append(".IP \\(bu 2")
            text, item = text[2:], True
        elif not text:
            item = False
            out.append(".PP")
            continue
        elif not item and ended and (line.startswith("  ") or indented or re.match(r"UCCL_E[A-Z]+", text)):
            out.append(".PP")
        out.append(roff(text))
        ended, indented = text.endswith((".", ":")), line.startswith("  ") and not item
    tidy = []
    for line in out: # no paragraph without text
        if tidy and line == ".PP" and tidy[-1] == ".PP":
            continue
        tidy.append(line)
    while tidy and tidy[-1] == ".PP":
        tidy.pop()
    return tidy if tidy[:1] == [".PP"] or tidy[:1] == [".IP \\(bu 2"] else [".PP", *tidy]


# ---- the header -----------------------------------------------------------------------------------------

class Fault(Exception):
    pass


FUNCTION = re.compile(r"^[a-z_][\w ]*[ *](uccl_\w+)\(", re.MULTILINE)


def comment_lines(comment):
    lines = comment[2:-2].split("\n")
    return [re.sub(r"^ ?\* ?", "", lines[0].strip()), *(re.sub(r"^ *\* ?", "", line).rstrip() for line in lines[1:])]


def blocks_of(header):
    """(section, comment or None, code) of what stands between blank lines; braces and comments are not cut."""
    section, block, depth, inside = "", [], 0, False
    body = header[header.index('extern "C" {'):header.rindex("#ifdef __cplusplus")].split("\n", 2)[2]
    for line in body.split("\n") + [""]:
        named = re.match(r"/\* -{3,} (.*?) -{3,} \*/", line)
        if named:
            section = named[1]
            continue
        if not line.strip() and not depth and not inside:
            text = "\n".join(block)
            block = []
            found = re.match(r"/\*.*?\*/\n?", text, re.DOTALL)
            if text:
                yield section, found and found[0].strip(), text[found.end():] if found else text
            continue
        block.append(line)
        code = re.sub(r"/\*.*?\*/", "", line)
        inside = "*/" not in code if inside else "/*" in code
        depth += 0 if inside else code.count("{") - code.count("}")


def functions_of(code):
    return FUNCTION.findall(re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL))


def all_functions(header):
    names = []
    for _, comment, code in blocks_of(header):
        names += functions_of(code)
        if functions_of(code) and not comment:
            raise Fault(f"{', '.join(functions_of(code))}: no comment in the header says what the call does")
    return names


def library_page(header, counters, version):
    out = head("uccl-engine", 3, version, "asynchronous message transport between processes")
    out += [".SH SYNOPSIS", ".nf", ".B #include <uccl/engine.h>", ".PP",
            ".B cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs uccl\\-engine)", ".fi", ".SH DESCRIPTION"]
    about = re.search(r"/\*\n \* libuccl-engine:.*?\*/", header, re.DOTALL)[0]
    out += paragraphs(comment_lines(about))
    last = None
    for section, comment, code in blocks_of(header):
        if section != last and section:
            out.append(f".SH {escaped(section.upper())}")
            last = section
        code = code.strip("\n")
        if "UCCL_ERROR_ROWS(UCCL_ERROR_ENUM)" in code: # the rows say more
            continue
        rows = re.findall(r"ROW\((\w+), (-?\d+), \"(.*?)\"\)", code)
        names = functions_of(code)
        title = ", ".join(names) or ", ".join(re.findall(r"^(?:typedef )?((?:struct|enum) \w+)", code, re.MULTILINE))
        if rows:
            title = "Errors"
        elif not title:
            title = "Version" if "UCCL_VERSION" in code else ""
        if title:
            out.append(f".SS {escaped(title)}")
        if rows:
            for name, value, text in rows:
                out += [".TP", f"\\fB{name}\\fP ({escaped(value)})", roff(text)]
            continue
        out += verbatim(code.split("\n"))
        if comment:
            out += paragraphs(comment_lines(comment))
    out += [".SH COUNTERS", "What", ".BR uccl_counter ()", "and", ".BR uccl_counter_by_name ()", "read."]
    for name, strings in re.findall(r'^COUNTER\((\w+),\s*((?:"[^"]*"\s*)+)\)', counters, re.MULTILINE):
        out += [".TP", f"\\fB{name}\\fP", roff("".join(re.findall(r'"([^"]*)"', strings)))]
    return out + see_also("uccl-engine")


# ---- docs/parameters.md -----------------------------------------------------------------------------------

def parameters_page(text, version):
    name = "uccl-engine.conf"
    out = head(name, 5, version, "parameters of libuccl-engine, and its configuration file") + [".SH DESCRIPTION"]
    code, fresh = [], True
    for line in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split("\n")[1:] + [""]:
        if line.startswith("    "):
            code.append(line[4:])
            continue
        if code:
            out += verbatim(code)
            code = []
        if line.startswith("## "):
            out.append(f".SH {escaped(line[3:].upper())}")
            fresh = True
        elif line.startswith("- **"): # a parameter; its meaning follows, indented
            parameter, rest = re.match(r"- \*\*(.*?)\*\*(.*)", line).groups()
            out += [".TP", roff(parameter) + roff(rest)]
            fresh = False
        elif re.match(r"(\d+\.|-) ", line):
            mark, item = line.split(" ", 1)
            out += [f".IP {mark if mark != '-' else chr(92) + '(bu'} 4", roff(item)]
            fresh = False
        elif line.strip():
            # a list's item goes on where its line is indented
            out += ([".PP"] if fresh and not out[-1].startswith(".SH") else []) + [roff(line.strip())]
            fresh = False
        else:
            fresh = True
    return out + see_also(name)


# ---- --help ---------------------------------------------------------------------------------------------

def tool_page(program, version):
    # one line for each option and paragraph, whatever its length
    environment = dict(os.environ, ARGP_HELP_FMT="rmargin=20000,opt-doc-col=100", LC_ALL="C")
    lines = subprocess.run([program, "--help"], env=environment, capture_output=True, text=True, check=True).stdout.split("\n")
    name = os.path.basename(program)
    usage, about = lines[0], lines[1]
    out = head(name, 1, version, about[:1].lower() + about[1:].rstrip("."))
    out += [".SH SYNOPSIS", f".B {name}", roff(usage.split(name, 1)[1].strip()), ".SH DESCRIPTION", roff(about), ".SH OPTIONS"]
    rest = False
    examples = []
    for line in lines[2:]:
        option = re.match(r" {2,6}(-\S.*?)(?: {2,}(.*))?$", line)
        if option and not rest:
            out += [".TP", "\\fB" + escaped(option[1]) + "\\fP", roff((option[2] or "").strip())]
        elif re.match(r" \S.*:$", line) and not rest:
            out.append(f".SS {escaped(line.strip()[:-1])}")
        elif line.startswith("  ") and line.strip():
            examples.append(line.strip())
        elif line.strip():
            out += [".SH NOTES", roff(line)] if not rest else [".PP", roff(line)]
            rest = True
    if examples:
        out += [".SH EXAMPLES", *verbatim(examples)[1:]]
    return out + see_also(name)


# ---------------------------------------------------------------------------------------------------------

def read(path):
    with open(path) as file:
        return file.read()


def write(path, lines):
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    kind, *arguments = sys.argv[1:]
    if kind == "--names":
        print("\n".join(all_functions(read(arguments[0]))))
    elif kind == "--library":
        header, counters, version, directory = arguments
        header = read(header)
        for name in all_functions(header):
            write(os.path.join(directory, f"{name}.3"), [".so man3/uccl-engine.3"])
        write(os.path.join(directory, "uccl-engine.3"), library_page(header, read(counters), version))
    elif kind == "--parameters":
        write(arguments[2], parameters_page(read(arguments[0]), arguments[1]))
    elif kind == "--tool":
        write(arguments[2], tool_page(arguments[0], arguments[1]))
    else:
        raise Fault(f"no such kind: {kind}")


try:
    main()
except Fault as fault:
    sys.exit(f"man.py: {fault}")
