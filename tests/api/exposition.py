"""A strict reader of the Prometheus text format 0.0.4, with the rules of `promtool check metrics` that names of our own must keep.

The format is described at https://prometheus.io/docs/instrumenting/exposition_formats/ . Names with a colon are those of another
server, taken as they are; its histogram iteration_tokens_total is the one name that breaks a rule.
"""

import math
import re

METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|\+Inf|-Inf|NaN")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
MISNAMED = {"vllm:iteration_tokens_total"}
UNITS = re.compile(r"_(milliseconds|ms|microseconds|us|minutes|kilobytes|megabytes|kb|mb|percent)(_|$)")


def parse_sample(line):
    match = METRIC.match(line)
    assert match, line
    name, at, labels = match[0], match.end(), []
    if line[at] == "{":
        at += 1
        while line[at] != "}":
            pair = LABEL.match(line, at)
            assert pair, f"not a label: {line!r} at {at}"
            labels.append((pair[1], pair[2]))
            at = pair.end()
            assert line[at] in ",}", line
            at += line[at] == ","
        at += 1
        assert labels, f"empty braces: {line!r}"
    assert len({n for n, _ in labels}) == len(labels), f"a label twice: {line!r}"
    assert not any(n.startswith("__") for n, _ in labels), line
    assert line[at] == " ", line
    assert NUMBER.fullmatch(line[at + 1 :]), f"not a number (or a time stamp): {line!r}"
    return name, tuple(sorted(labels)), float(line[at + 1 :].replace("Inf", "inf"))


def check_name(family, kind):
    assert METRIC.fullmatch(family), family
    if ":" in family:
        return
    assert (kind == "counter") == family.endswith("_total"), f"{kind} {family}"
    assert not UNITS.search(family), f"not a base unit: {family}"
    assert not re.search(r"_(bucket|count|sum)$", family), family
    assert family == family.lower() and kind not in family.split("_"), family


def check_histogram(family, samples):
    series = {}
    for name, labels, value in samples:
        own = tuple(x for x in labels if x[0] != "le")
        series.setdefault(own, []).append((name[len(family) :], dict(labels).get("le"), value))
    for own, rows in series.items():
        buckets = [(float(le.replace("Inf", "inf")), value) for suffix, le, value in rows if suffix == "_bucket"]
        rest = {suffix: value for suffix, _, value in rows if suffix != "_bucket"}
        assert set(rest) == {"_sum", "_count"} and len(rows) == len(buckets) + 2, (family, own)
        bounds = [b for b, _ in buckets]
        assert bounds == sorted(set(bounds)) and bounds[-1] == math.inf, (family, own, bounds)
        counts = [c for _, c in buckets]
        assert counts == sorted(counts) and counts[-1] == rest["_count"], (family, own, counts)
        assert rest["_count"] > 0 or rest["_sum"] == 0, (family, own)


def check(text):
    """{family: (kind, [(name, labels, value), ...])}; fails on anything that is not as it should be."""
    assert text.endswith("\n") and "\r" not in text
    families, current, help_of, seen = {}, None, {}, set()
    for line in text[:-1].split("\n"):
        assert line == line.strip(" ") and line, repr(line)
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            assert name not in help_of and words, line
            help_of[name] = words
            current = None
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in families and name in help_of, line
            assert kind in ("counter", "gauge", "histogram", "summary", "untyped"), line
            if name not in MISNAMED:
                check_name(name, kind)
            families[name] = (kind, [])
            current = name
        else:
            assert not line.startswith("#"), line
            sample = parse_sample(line)
            assert current, f"a sample before its TYPE: {line!r}"
            kind, samples = families[current]
            assert sample[0] in [current + s for s in SUFFIXES.get(kind, ("",))], f"{line!r} is not of {current}"
            assert sample[:2] not in seen, f"twice: {line!r}"
            seen.add(sample[:2])
            assert kind != "counter" or sample[2] >= 0, line
            samples.append(sample)
    for name, (kind, samples) in families.items():
        assert samples, f"{name} has no series"
        if kind == "histogram":
            check_histogram(name, samples)
    return families
