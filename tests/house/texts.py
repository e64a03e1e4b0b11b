#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares docs/troubleshooting.md with the error and warning texts of the source.

    texts.py [--list] SOURCE [PAGE]

The texts are the format strings of the calls that log errors or warnings: the LOG macros, and every function that is
declared with a printf format. The page shows texts in fenced blocks, one a line; an indented line continues the one
before. A conversion of a format is a word of capitals there (%u: N), and %s may also be nothing. Each text must be on
the page, and each text of the page in the source. Reasons that such a text ends with, as far as they are strings in its
call or in one of REASONS, must stand somewhere on the page.
"""
import os
import re
import sys

FOLDERS = ("engine", "api", "plugins", "bench")
# of bench/ what is installed; the others print for who works on the engine
TOOLS = {"transport_test", "p2p_bench", "p2p_local", "p2p_onesided", "p2p_report", "uccl_info", "info_verbs", "tool",
         "stream", "onesided", "output", "device"}
# calls that say something, beside the functions found by their attribute: name, and the argument of the format
CALLS = {"LOG_ERR": 0, "LOG_WARNING": 0, "LOG": 1, "WARN": 0, "log_line": 1, "fprintf": 1, "argp_error": 1}
# functions with a format that say nothing to the user by themselves
SILENT = {"log_write": "behind the LOG macros", "read_sys": "makes a path"}
# functions that log what others have put in words: where the texts come from
PASSED_ON = {
    "tell_fault": "its callers",
    "race_tell": "what tell_fault() has kept",
    "uring_open": "what says why there is no ring",
    "take_engine_log": "the engine's log",
    "say_error": "tool_fail() and tool_fail_uccl()",
    "print_log": "the engine's log",
    "parse_option": "settings_fault()",
    "show_progress": "nobody: it draws a bar",
}
# where texts are printed for others to log, and functions that return some
BUFFERS = {"reason", "c->missing"}
MAKERS = {"settings_fault"}
# where else reasons stand: a function that returns them, or the rows of a table
REASONS = {"refusal_text", "verbs_address_decode"}
REASON_ROWS = re.compile(r'\{BOOT_[A-Z_]+, "([^"]+)"\}|awaited leaving = \{[A-Z_]+, "([^"]+)"\}')
LETTERS_LEAST = 3  # of a format's words
REASON_LEAST = 12  # letters of a reason

CONVERSION = re.compile(r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j|t)?([a-zA-Z%])")
FORMAT_ATTRIBUTE = re.compile(r"format\(printf, (\d+), \d+\)")
TOKEN = re.compile(r'"((?:\\.|[^"\\])*)"|([A-Za-z_]\w*)|(\S)')


def without_comments(text):
    def blank(match):
        return match[0] if match[0][0] in "\"'" else re.sub(r"[^\n]", " ", match[0])
    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\])+\'|/\*.*?\*/|//[^\n]*', blank, text, flags=re.DOTALL)


def arguments_at(text, at):
    """The arguments of the call whose parenthesis opens before `at`."""
    arguments, depth, begin = [], 1, at
    for match in re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\'|[(){}\[\],]').finditer(text, at):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
        if depth == 0 or (match[0] == "," and depth == 1):
            arguments.append(text[begin:match.start()])
            begin = match.end()
        if depth == 0:
            break
    return arguments


def formats_of(argument):
    """The format strings in an argument: strings side by side are one, those of a ?: several. %m stands for a macro."""
    formats, current = [], None
    for string, name, other in TOKEN.findall(argument):
        if other in ("?", ":") or other == "(" or other == ")":
            if current is not None:
                formats.append(current)
            current = None
        elif name:
            if name.startswith("PRI") and current is not None:
                current += "ll" + name[3]
            elif current is not None:
                current += "%m"
        elif not other:
            current = (current or "") + string
    if current is not None:
        formats.append(current)
    return formats


def sources(root):
    for folder in FOLDERS:
        for path, folders, files in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(files):
                stem, ending = os.path.splitext(name)
                if ending in (".c", ".cpp", ".h") and (folder != "bench" or stem in TOOLS):
                    full = os.path.join(path, name)
                    with open(full) as file:
                        yield os.path.relpath(full, root), without_comments(file.read())


def callers_with_format(files):
    calls = dict(CALLS)
    for _, text in files:
        for match in FORMAT_ATTRIBUTE.finditer(text):
            # the declaration that the attribute stands in, before or behind its name
            begin = max(text.rfind(";", 0, match.start()), text.rfind("}", 0, match.start())) + 1
            names = re.findall(r"(\w+)\(", re.sub(r"__attribute__\(\([^;{]*?\)\)", "", text[begin:match.end() + 300] + "))"))
            names = [name for name in names if name not in ("__attribute__", "format", "void")]
            if names and names[0] not in SILENT:
                calls[names[0]] = int(match[1]) - 1
    return calls


def callers_with_doing(files):
    """Functions that put the parameter `doing` before what the system says of it."""
    found = {}
    for _, text in files:
        for match in re.finditer(r"^[\w ]+?\b(\w+)\(([^;{}()]*\bdoing\b[^;{}()]*)\)\s*\{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            if re.search(r'"%s: %s(%s)?", doing', match[3]):
                found[match[1]] = [re.search(r"\w+$", parameter)[0] for parameter in match[2].split(",")].index("doing")
    return found


def functions_of(text):
    """(name, begin) of each function's body."""
    text = re.sub(r"^__attribute__\(\(.*?\)\) ", lambda match: " " * len(match[0]), text, flags=re.MULTILINE)
    return [(match[1], match.start()) for match in
            re.finditer(r"^(?![\t#}])[^;={}()]*?\b(?!__attribute__)(\w+)\([^;{}]*\)\s*\n\{", text, re.MULTILINE)]


class Text:
    def __init__(self, path, line, function, format):
        self.path, self.line, self.function, self.format = path, line, function, format
        self.reason = self.passed_on = False
        plain = format.replace("\\n", "").replace('\\"', '"').replace("\\\\", "\\").replace("\\r\\033[K", "")
        self.words = re.sub(r"[^A-Za-z]", "", CONVERSION.sub("", plain))
        pattern, at = "", 0
        for match in CONVERSION.finditer(plain):
            pattern += re.escape(plain[at:match.start()])
            pattern += {"%": "%", "s": "(?: ?[A-Z_]+)?"}.get(match[1], "[A-Z_]+")
            at = match.end()
        self.pattern = re.compile(pattern + re.escape(plain[at:]))
        self.shown = CONVERSION.sub(lambda m: {"%": "%", "s": "WORD", "m": "NAME"}.get(m[1], "N"), plain)


def letters_of(text):
    return len(re.sub(r"[^A-Za-z]", "", text))


def reason(path, text, spot, function, string):
    string = string.strip(" ;:,")
    found = Text(path, text.count("\n", 0, spot) + 1, function, string[1:-1] if string[:1] == "(" else string)
    found.reason = True
    return found


def texts_of(root):
    files = list(sources(root))
    doing = callers_with_doing(files)
    calls = callers_with_format(files) | doing
    found = []
    for path, text in files:
        functions = functions_of(text)
        for match in re.finditer(r"\b(\w+)\s*\(", text):
            name, spot = match[1], match.start()
            function = next((n for n, begin in reversed(functions) if begin < spot), "")
            made = name == "snprintf"
            if not made and name not in calls:
                continue
            line_start = text.rfind("\n", 0, spot) + 1
            if text[line_start:line_start + 1] in "#" or not text[line_start:spot].strip() == text[line_start:spot].strip():
                continue
            arguments = arguments_at(text, match.end())
            index = 2 if made else calls[name]
            if len(arguments) <= index or text[line_start:line_start + 7] == "#define":
                continue
            if made and arguments[0].strip() not in BUFFERS:
                continue
            if name in ("LOG", "log_line") and not re.search(r"LOG_(ERROR|WARN|KIND_WARN)", arguments[0]):
                continue
            if name == "fprintf" and arguments[0].strip() != "stderr":
                continue
            for format in formats_of(arguments[index]):
                format += ": %s" if name in doing else ""
                found.append(Text(path, text.count("\n", 0, spot) + 1, function, format))
                found[-1].passed_on = function in doing
            for argument in arguments[index + 1:]:
                found += [reason(path, text, spot, function, string) for string in formats_of(argument)
                          if letters_of(string) >= REASON_LEAST]
        found += [reason(path, text, match.start(), "", match[1] or match[2]) for match in REASON_ROWS.finditer(text)]
        for maker, begin in functions:
            if maker in REASONS:
                body = text[begin:text.find("\n}", begin)]
                found += [reason(path, text, begin, maker, string) for string in re.findall(r'(?:return|=)\s+"([^"]+)";', body)
                          if letters_of(string) >= REASON_LEAST]
            if maker in MAKERS:
                body = text[begin:text.find("\n}", begin)]
                for match in re.finditer(r"\breturn\s+((?:\"(?:\\.|[^\"\\])*\"\s*)+);", body):
                    for format in formats_of(match[1]):
                        found.append(Text(path, text.count("\n", 0, begin + match.start()) + 1, maker, format))
    rows = re.search(r"#define UCCL_ERROR_ROWS\(ROW\)(.*?)\n\n", open(os.path.join(root, "include/uccl/engine.h")).read(), re.DOTALL)
    for name, value, text in re.findall(r'ROW\((\w+), (-?\d+), "([^"]*)"\)', rows[1]):
        if value != "0":
            found.append(Text("include/uccl/engine.h", 0, "uccl_strerror", f"{name} ({value}): {text}"))
    return found


def page_texts(path):
    """(line, text) of each text in the fenced blocks."""
    texts, inside = [], False
    with open(path) as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if line.startswith("```"):
                inside = not inside
            elif inside and line.startswith("    ") and texts:
                texts[-1] = (texts[-1][0], texts[-1][1] + " " + line.strip())
            elif inside and line:
                texts.append((number, line))
    return texts


def main():
    arguments = [a for a in sys.argv[1:] if a != "--list"]
    root = arguments[0]
    page = arguments[1] if len(arguments) > 1 else os.path.join(root, "docs/troubleshooting.md")
    texts = texts_of(root)
    if len(arguments) < len(sys.argv) - 1:
        for text in texts:
            print(f"{text.path}:{text.line} {text.function}: {text.shown}")
        return 0
    faults = 0
    shown = page_texts(page)
    with open(page) as file:
        words = re.sub(r"[\s*`]+", " ", file.read())
    used = set()
    for text in texts:
        if text.reason:
            if re.sub(r"[*`]", "", text.format) not in words:
                print(f"{text.path}:{text.line}: this reason is not on the page: {text.format}")
                faults += 1
            continue
        if len(text.words) < LETTERS_LEAST:
            if text.function not in PASSED_ON and not text.passed_on:
                print(f"{text.path}:{text.line}: \"{text.format}\" has no words to find it by: give it some, or say in "
                      f"PASSED_ON of tests/house/texts.py where its texts come from")
                faults += 1
            continue
        matching = [number for number, line in shown if text.pattern.fullmatch(line)]
        if not matching:
            print(f"{text.path}:{text.line}: not on the page: {text.shown}")
            faults += 1
        used.update(matching)
    for number, line in shown:
        if number not in used:
            print(f"{os.path.basename(page)}:{number}: nothing says this: {line}")
            faults += 1
    print(f"{len(texts)} texts, {faults} faults")
    return 1 if faults or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
