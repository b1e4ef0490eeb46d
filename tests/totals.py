"""Count what a test runner reports: `totals.py REPORT [NAME]` prints "SUITE PASSED FAILED SKIPPED SECONDS" for each suite.

REPORT is meson's testlog.json (one JSON object a line, one a program) or a JUnit XML file of pytest, whose suite is
NAME (api). A Criterion
program is counted by its own tests, any other program is one test.
"""

import json
import os
import re
import sys
from collections import defaultdict
from xml.etree import ElementTree

# "[====] Synthesis: Tested: 5 | Passing: 4 | Failing: 1 | Crashing: 0", perhaps with colour codes between
SYNTHESIS = re.compile(r"Tested:\D*(\d+)\D*Passing:\D*(\d+)\D*Failing:\D*(\d+)\D*Crashing:\D*(\d+)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def of_program(entry):
    """(passed, failed, skipped) of one program of a meson test log."""
    output = COLOUR.sub("", (entry.get("stdout") or "") + (entry.get("stderr") or ""))
    ended_well = entry["result"] in ("OK", "EXPECTEDFAIL")
    synthesis = SYNTHESIS.search(output)
    if synthesis:
        _, passing, failing, crashing = map(int, synthesis.groups())
        skipped = len(re.findall(r"^\[SKIP\]", output, re.MULTILINE))
        # a program may fail after its tests did well (a leak found at exit): that counts too
        return passing, failing + crashing or int(not ended_well), skipped
    if entry["result"] == "SKIP":
        return 0, 0, 1
    return int(ended_well), int(not ended_well), 0


def of_meson(path):
    # the log names programs but not their suites: the build folder knows those by command line
    with open(os.path.join(os.path.dirname(path), "..", "meson-info", "intro-tests.json"), encoding="utf-8") as tests:
        suite_of = {tuple(t["cmd"]): t["suite"][0].rpartition(":")[2] for t in json.load(tests)}
    suites = defaultdict(lambda: [0, 0, 0, 0.0])
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            entry = json.loads(line)
            suite = suite_of.get(tuple(entry["command"]), "other")
            for i, n in enumerate(of_program(entry)):
                suites[suite][i] += n
            suites[suite][3] += entry.get("duration") or 0
    return suites


def of_junit(path, name):
    total = [0, 0, 0, 0.0]
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        tests, bad, skipped = (int(suite.get(k, 0)) for k in ("tests", "failures", "skipped"))
        bad += int(suite.get("errors", 0))
        total = [total[0] + tests - bad - skipped, total[1] + bad, total[2] + skipped, total[3] + float(suite.get("time", 0))]
    return {name: total}


def main():
    path = sys.argv[1]
    suites = of_junit(path, sys.argv[2] if len(sys.argv) > 2 else "api") if path.endswith(".xml") else of_meson(path)
    for name in sorted(suites):
        passed, failed, skipped, seconds = suites[name]
        print(name, passed, failed, skipped, round(seconds))


if __name__ == "__main__":
    main()
