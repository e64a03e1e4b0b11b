# SPDX-License-Identifier: Apache-2.0
"""What the checks of the house share: the files that they look at, and what is let pass."""
import os

FOLDERS = ["include", "engine", "api", "plugins", "bench", "tests"]


def sources(root, folders=None, endings=(".c", ".h", ".def")):
    """The sources below ROOT, as paths from there: also those that git does not know yet."""
    found = []
    for folder in folders or FOLDERS:
        for where, _, names in os.walk(f"{root}/{folder}"):
            found += (os.path.relpath(f"{where}/{name}", root) for name in names if name.endswith(endings))
    return sorted(found)


def report(faults):
    faults = list(faults)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


class Exceptions:
    """exceptions.txt: lines of words, and which of them were needed."""

    def __init__(self, path):
        with open(path) as f:
            self.lines = [tuple(words) for words in (line.split("#")[0].split() for line in f) if words]
        self.taken = set()

    def take(self, *line):
        self.taken.add(line)
        return line in self.lines

    def needless(self, *kinds):
        """After all of a kind were looked for."""
        return [f"exceptions.txt: no longer needed: {' '.join(line)}. Delete the line" for line in self.lines
                if line[0] in kinds and line not in self.taken]

    def circles(self):
        found = []
        for line in (line for line in self.lines if line[0] == "circle"):
            folder, names = "", set()
            for word in line[1:]:
                if word.endswith(":"):
                    folder = word[:-1]
                else:
                    names.add(f"{folder}/{word}")
            found.append(frozenset(names))
        return found
