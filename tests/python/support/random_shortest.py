# SPDX-License-Identifier: Apache-2.0
"""The shortest form of a random program that differs.

python tests/python/support/random_shortest.py 0 1000   # of every seed from 0 to 999 that differs
"""

import collections
import random
import re
import sys
from dataclasses import replace

from random_known import known
from random_programs import Invalid, difference
from random_scope import write


def shortest(program):
    """The program without the lines that are not needed for the same difference."""
    kind = _kind(program)
    candidates = [replace(program, repeated=False)] if program.repeated else []
    while True:
        candidates += [_without(program, n) for n in reversed(range(len(program.lines)))]
        shorter = next((p for p in candidates if p.lines and _kind(p) == kind), None)
        if shorter is None:
            return program
        program, candidates = shorter, []


def _without(program, number):
    """Without a line and all lines that use what it made."""
    gone, lines = set(), []
    for i, line in enumerate(program.lines):
        if i == number or gone & set(re.findall(r"\bt\d+\b", line)):
            made = line.split(" = ")[0] if " = " in line else ""
            gone |= set(re.findall(r"\bt\d+\b", made)) if "[" not in made else set()
        else:
            lines.append(line)
    return replace(program, lines=tuple(lines))


def _kind(program):
    """The part of a difference that stays when a program is shortened: no names, no numbers."""
    try:
        text = difference(program)
    except Invalid:
        return None
    return None if text is None else re.sub(r"\bt?\d+\b|at '.*?':|;.*", "", text)[:40]


def main():
    counts = collections.Counter()
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        program = write(random.Random(seed))
        try:
            text = difference(program)
        except Invalid:
            counts["invalid"] += 1
            continue
        reason = text and known(program, text)
        counts[reason or ("new" if text else "equal")] += 1
        if text and not reason:
            program = shortest(program)
            print(f"--- seed {seed}, mesh {program.mesh}: {difference(program)}")
            print("\n".join(program.lines), flush=True)
    print(counts)


if __name__ == "__main__":
    main()
