#!/usr/bin/env python3
"""Compares inferd's chat template interpreter with Jinja2 on generated templates (needs the jinja2 package, 3.1.6).

    python3 tests/golden/compare_jinja.py [--inferd build/inferd] [-n 5000] [--seed 1] [-v]

Each template is put together at random from a grammar of expressions, filters, tests, methods and statements, over the
context of tests/unit/make_jinja_cases.py, whose environment (that of transformers) is also the reference. Both must give
the same text, or both an error. Counted apart: texts that hold an address of Python's memory, templates over inferd's
budget, errors in a generator that nothing reads (inferd runs filters at once), and what only Jinja2's folding of constants
makes of a template (`(7)[1:]` undefined, where `i[1:]` is an error), and complex numbers, which inferd refuses. Prints each disagreement; exit code 1 if there is one.
"""
import argparse
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/unit"))
from make_jinja_cases import CONTEXT, ENVIRONMENT  # noqa: E402

NAMES = list(CONTEXT) + ["nope", "loop", "ns", "m", "v"]
STRINGS = ["", "a", "ab", "b-a", " x ", "A b", "é", "你好", "\\n", "a\\nb\\n", "{}", "%s", "%d|%s", "{:>5}", "{0}{1}", "k", "n", "<i>", "1", "-2.5", ",", "abcabc", "Σ", "ß", "\\t\\u2028"]
NUMBERS = ["0", "1", "2", "3", "-1", "7", "1.5", "-0.0", "2.0", "1e3", "10", "100", "1e16", "1e-7", "true", "false", "none"]
FILTERS = {
    "abs": 0, "attr": 1, "batch": 2, "capitalize": 0, "center": 1, "count": 0, "d": 2, "default": 2, "dictsort": 3, "e": 0,
    "escape": 0, "filesizeformat": 1, "first": 0, "float": 1, "forceescape": 0, "format": 2, "groupby": 2, "indent": 3,
    "int": 2, "items": 0, "join": 2, "last": 0, "length": 0, "list": 0, "lower": 0, "map": 2, "max": 0, "min": 0,
    "reject": 2, "rejectattr": 3, "replace": 3, "reverse": 0, "round": 2, "safe": 0, "select": 2, "selectattr": 3,
    "slice": 2, "sort": 2, "string": 0, "striptags": 0, "sum": 2, "title": 0, "tojson": 1, "trim": 1, "truncate": 3,
    "unique": 1, "upper": 0, "urlencode": 0, "wordcount": 0, "wordwrap": 1, "xmlattr": 0, "pprint": 0,
}
TESTS = {
    "boolean": 0, "callable": 0, "defined": 0, "divisibleby": 1, "eq": 1, "escaped": 0, "even": 0, "false": 0, "float": 0,
    "ge": 1, "gt": 1, "in": 1, "integer": 0, "iterable": 0, "le": 1, "lower": 0, "lt": 1, "mapping": 0, "ne": 1, "none": 0,
    "number": 0, "odd": 0, "sameas": 1, "sequence": 0, "string": 0, "true": 0, "undefined": 0, "upper": 0, "filter": 0,
    "test": 0,
}
METHODS = {
    "capitalize": 0, "casefold": 0, "center": 2, "count": 1, "endswith": 2, "expandtabs": 1, "find": 3, "format": 2,
    "index": 1, "isalnum": 0, "isalpha": 0, "isascii": 0, "isdecimal": 0, "isdigit": 0, "isidentifier": 0, "islower": 0,
    "isnumeric": 0, "isprintable": 0, "isspace": 0, "istitle": 0, "isupper": 0, "join": 1, "ljust": 2, "lower": 0,
    "lstrip": 1, "partition": 1, "removeprefix": 1, "removesuffix": 1, "replace": 3, "rfind": 2, "rindex": 1, "rjust": 2,
    "rpartition": 1, "rsplit": 2, "rstrip": 1, "split": 2, "splitlines": 1, "startswith": 2, "strip": 1, "swapcase": 0,
    "title": 0, "upper": 0, "zfill": 1, "get": 2, "items": 0, "keys": 0, "values": 0, "copy": 0, "append": 1, "pop": 1,
}
LOOP = ["index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem", "nextitem"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "and", "or", "==", "!=", "<", "<=", ">", ">=", "in", "not in"]


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items):
        return self.r.choice(items)

    def maybe(self, p):
        return self.r.random() < p

    def string(self):
        quote = self.pick("'\"")
        return quote + self.pick(STRINGS) + quote

    def atom(self):
        kind = self.r.random()
        if kind < 0.45:
            return self.pick(NAMES)
        if kind < 0.7:
            return self.string()
        return self.pick(NUMBERS)

    def arguments(self, most, depth):
        return ", ".join(self.expression(depth) for _ in range(self.r.randint(0, most)))

    def keyword_filter(self, depth):
        e = lambda: self.expression(depth)  # noqa: E731
        return self.pick([
            f"tojson(indent={self.pick(['none', '2', '4'])})", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)",
            "tojson(separators=(',', ':'))", f"sort(reverse={e()})", "sort(attribute='n')", "map(attribute='n', default=0)",
            "map(attribute='a.b')", "map('upper')", "map('replace', 'a', 'b')", "selectattr('n', 'eq', 'a')",
            "selectattr('n')", "rejectattr('v', 'defined')", "groupby('n')", f"join({e()}, attribute='n')", "sum(attribute='v')",
            f"default({e()}, true)", f"indent(width={self.pick(['2', e()])}, first=true)", "indent(blank=true)",
            "dictsort(by='value')", f"truncate(length={self.pick(['3', '5', '9'])}, killwords=true, leeway=0)", "round(1, 'floor')",
            "round(method='ceil')", "wordwrap(4, break_long_words=false)", "unique(case_sensitive=true)", "unique(attribute='n')",
            "min(attribute='n')", "max(case_sensitive=true)", "int(base=16)", "trim('xa ')", f"replace({e()}, {e()}, 1)",
            "format(a=1)", f"batch(2, {e()})", f"slice(2, {e()})", "xmlattr(false)", "filesizeformat(binary=true)",
        ])

    def format_spec(self):
        p = self.pick
        return p(["", ":", ":" + p(["", "*", "0"]) + p(["<", ">", "^", "="]) + p(["3", "8", ""]), ":" + p(["+", " ", "-", "#", "0"]) + p(["", "5"]) + p(["", ".2", ".0"]) + p(["d", "f", "e", "g", "x", "X", "o", "b", "%", "s", "n", "c", ""]), ":,", ":_", "!r", "!s", "!r:>6"])

    # --- expressions of a type, which mostly succeed

    def text_(self, d):
        if d <= 0:
            return self.pick([self.string(), "s", "u", "q", "nl", "w", "csv", "h", "fl", "num", "e", "objs[0].n", "v | string"])
        t, n, k = (lambda: self.text_(d - 1)), (lambda: self.number_(d - 1)), self.string
        return self.pick([
            lambda: f"({t()} ~ {self.any_(d - 1)})", lambda: f"({t()} + {t()})", lambda: f"{t()} * {self.pick('0123')}",
            lambda: f"({t()})[{self.small()}:{self.small()}]", lambda: f"({t()})[::{self.pick(['1', '2', '-1', '-3'])}]",
            lambda: f"({t()}) | {self.pick(['upper', 'lower', 'title', 'capitalize', 'trim', 'e', 'string', 'urlencode', 'striptags', 'safe', 'forceescape', 'wordcount | string', 'tojson', 'indent', 'pprint'])}",
            lambda: f"({t()}) | replace({k()}, {t()}{self.pick(['', ', 1', ', 0', ', none'])})",
            lambda: f"({t()}) | {self.pick(['center', 'wordwrap', 'truncate', 'indent'])}({self.pick(['1', '4', '9', '20'])})",
            lambda: f"({t()}) | truncate({self.pick(['3', '6'])}, {self.pick(['true', 'false'])}, {self.pick(['2', chr(39) + '.' + chr(39)])}, 0)",
            lambda: f"({t()}) | indent({self.pick(['3', k()])}, {self.pick(['true', 'false'])}, {self.pick(['true', 'false'])})",
            lambda: f"({t()}).{self.pick(['upper', 'lower', 'title', 'capitalize', 'swapcase', 'casefold', 'strip', 'lstrip', 'rstrip', 'expandtabs'])}()",
            lambda: f"({t()}).{self.pick(['strip', 'lstrip', 'rstrip', 'removeprefix', 'removesuffix'])}({k()})",
            lambda: f"({t()}).{self.pick(['ljust', 'rjust', 'center'])}({self.pick(['1', '5', '12'])}{self.pick(['', ', ' + chr(39) + '*' + chr(39), ', ' + chr(39) + 'é' + chr(39)])})",
            lambda: f"({t()}).zfill({self.pick(['2', '9'])})", lambda: f"({t()}).replace({k()}, {k()}{self.pick(['', ', 1', ', -1'])})",
            lambda: f"{k()}.join({self.list_(d - 1)} | map('string'))", lambda: f"{self.list_(d - 1)} | join({self.pick(['', k()])})",
            lambda: f"({self.any_(d - 1)}) | tojson({self.pick(['', 'indent=2', 'sort_keys=true', 'ensure_ascii=true', 'separators=(' + chr(39) + ',' + chr(39) + ', ' + chr(39) + ':' + chr(39) + ')'])})",
            lambda: f"({self.any_(d - 1)}) | string", lambda: f"({t()} if {self.any_(d - 1)} else {t()})", lambda: f"({n()}) | filesizeformat",
            lambda: f"'{{{self.format_spec()}}}'.format({self.pick([t(), n()])})", lambda: f"'%{self.pick(['s', 'r', '8s', '-6s|', '.3s', '5.1s'])}' % ({t()},)",
            lambda: f"'%{self.pick(['', '0', '+', '-', ' ', '#'])}{self.pick(['', '6'])}{self.pick(['', '.1', '.3', '.0'])}{self.pick('dfegxXoGEi')}' % ({n()},)",
            lambda: f"'%(a)s-%(b){self.pick(['s', '5s', 'r'])}' | format(a={self.any_(d - 1)}, b={t()})",
        ])()

    def number_(self, d):
        if d <= 0:
            return self.pick(["0", "1", "2", "-3", "7", "1.5", "2.0", "-0.5", "i", "z", "neg", "x", "big", "l[0]", "1e16", "0.1", "true"])
        n, t = (lambda: self.number_(d - 1)), (lambda: self.text_(d - 1))
        return self.pick([
            lambda: f"({n()} {self.pick(['+', '-', '*'])} {n()})", lambda: f"({n()} {self.pick(['/', '//', '%'])} {self.pick(['2', '3', '-2', '0.7', '10', n()])})",
            lambda: f"{self.pick(['2', '3', '-2', '1.5', '10', 'neg'])} ** {self.pick(['0', '2', '3', '-1', '0.5', '20'])}", lambda: f"-({n()})",
            lambda: f"({n()}) | {self.pick(['abs', 'int', 'float', 'round', 'round(1)', 'round(2, ' + chr(39) + 'ceil' + chr(39) + ')', 'round(0, ' + chr(39) + 'floor' + chr(39) + ')', 'round(-1)'])}",
            lambda: f"({t()}) | {self.pick(['length', 'int', 'float', 'int(5)', 'int(0, 16)', 'float(1.5)', 'wordcount'])}",
            lambda: f"({t()}).{self.pick(['count', 'find', 'rfind'])}({self.string()}{self.pick(['', ', 1', ', -2', ', 0, 3'])})",
            lambda: f"{self.list_(d - 1)} | length", lambda: f"[{n()}, {n()}, {n()}] | {self.pick(['sum', 'min', 'max', 'first', 'last', 'sum(start=2)'])}",
        ])()

    def list_(self, d):
        if d <= 0:
            return self.pick(["l", "ls", "el", "[1, 'a', none]", "nested", "objs", "range(4)", "(1, 2)", "d.items()", "d.keys()", "u", "csv.split(',')", "p"])
        li, t = (lambda: self.list_(d - 1)), (lambda: self.text_(d - 1))
        return self.pick([
            lambda: f"[{self.any_(d - 1)}, {self.any_(d - 1)}]", lambda: f"({self.any_(d - 1)}, {self.any_(d - 1)})", lambda: f"({li()} | list + {li()} | list)",
            lambda: f"({li()} | list)[{self.small()}:{self.small()}:{self.pick(['1', '2', '-1', '-2'])}]", lambda: f"({t()}).split({self.pick(['', self.string(), 'none, 1', self.string() + ', 1'])})",
            lambda: f"({t()}).rsplit({self.pick([self.string() + ', 1', 'none, 2', ''])})", lambda: f"({t()}).splitlines({self.pick(['', 'true', 'false', '1'])})",
            lambda: f"({t()}).{self.pick(['partition', 'rpartition'])}({self.string()})", lambda: f"({t()}) | list",
            lambda: f"({li()} | map('string') | {self.pick(['sort', 'unique', 'reverse', 'sort(reverse=true)', 'sort(case_sensitive=true)', 'map(' + chr(39) + 'upper' + chr(39) + ')', 'select', 'reject(' + chr(39) + 'eq' + chr(39) + ', ' + chr(39) + '1' + chr(39) + ')'])} | list)",
            lambda: f"({li()} | {self.pick(['select(' + chr(39) + 'string' + chr(39) + ')', 'reject(' + chr(39) + 'none' + chr(39) + ')', 'select', 'unique', 'batch(2)', 'batch(2, 0)', 'slice(2)', 'slice(3, none)'])} | list)",
            lambda: f"(objs | {self.pick(['map(attribute=' + chr(39) + 'n' + chr(39) + ')', 'map(attribute=' + chr(39) + 'v' + chr(39) + ', default=9)', 'selectattr(' + chr(39) + 'v' + chr(39) + ')', 'selectattr(' + chr(39) + 'v' + chr(39) + ', ' + chr(39) + 'gt' + chr(39) + ', 1)', 'rejectattr(' + chr(39) + 'v' + chr(39) + ', ' + chr(39) + 'defined' + chr(39) + ')', 'sort(attribute=' + chr(39) + 'n' + chr(39) + ')', 'groupby(' + chr(39) + 'n' + chr(39) + ')', 'unique(attribute=' + chr(39) + 'n' + chr(39) + ')'])} | list)",
            lambda: f"({{{self.string()}: {self.any_(d - 1)}, 'k': 1}}) | {self.pick(['dictsort', 'items | list', 'list'])}",
        ])()

    def small(self):
        return self.pick(["", "0", "1", "2", "5", "-1", "-2", "-9", "none"])

    def any_(self, d):
        kind = self.r.random()
        if kind < 0.3:
            return self.text_(d)
        if kind < 0.5:
            return self.number_(d)
        if kind < 0.68:
            return self.list_(d)
        if kind < 0.76:
            return "{" + f"{self.string()}: {self.any_(d - 1) if d > 0 else '1'}, 'k': {self.atom()}" + "}"
        if kind < 0.86 and d > 0:
            return f"({self.any_(d - 1)} {self.pick(['==', '!=', 'in', 'and', 'or'])} {self.list_(d - 1)})"
        if kind < 0.92 and d > 0:
            test = self.pick([t for t, n in TESTS.items() if n == 0])
            return f"({self.any_(d - 1)} is {self.pick(['', 'not '])}{test})"
        return self.atom()

    def expression(self, depth):
        return self.any_(depth) if self.maybe(0.6) else self.wild(depth)

    def wild(self, depth):
        if depth <= 0 or self.maybe(0.12):
            return self.atom()
        d, kind = depth - 1, self.r.random()
        e = lambda: self.expression(d)  # noqa: E731
        if kind < 0.18:
            return f"{e()} {self.pick(BINARY)} {e()}"
        if kind < 0.22:
            return f"{self.pick(['-', '+', 'not '])}{e()}"
        if kind < 0.25:
            return f"({e()})"
        if kind < 0.29:
            return f"{e()} if {e()}" + (f" else {e()}" if self.maybe(0.7) else "")
        if kind < 0.47:
            name = self.pick(list(FILTERS))
            inner = self.arguments(FILTERS[name], d - 1)
            call = f"({inner})" if inner or self.maybe(0.1) else ""
            return f"{self.pick([self.atom, e])()} | {name}{call}" if self.maybe(0.6) else f"{e()} | {self.keyword_filter(d - 1)}"
        if kind < 0.55:
            name = self.pick(list(TESTS))
            inner = self.arguments(TESTS[name], d - 1)
            call = f"({inner})" if inner else ""
            return f"{e()} is {'not ' if self.maybe(0.2) else ''}{name}{call}"
        if kind < 0.68:
            name = self.pick(list(METHODS))
            target = self.pick([self.string(), "s", "u", "csv", "w", "d", "ls", "l", f"({e()})"])
            return f"{target}.{name}({self.arguments(METHODS[name], d - 1)})"
        if kind < 0.73:
            part = lambda: self.pick(["", "0", "1", "-1", "2", "-3", self.atom()])  # noqa: E731
            index = self.pick([e(), f"{part()}:{part()}", f"{part()}:{part()}:{self.pick(['1', '2', '-1', '-2', part()])}"])
            return f"{self.pick(['l', 's', 'u', 'nested', 'd', '(1, 2, 3)', 'range(9)', f'({e()})'])}[{index}]"
        if kind < 0.77:
            return f"{self.pick(['d', 'objs', 'loop', 'ns', 'p', f'({e()})'])}.{self.pick(['a', 'b', 'k', 'n', '0', '1', 'items', 'x', 'zz'])}"
        if kind < 0.84:
            items = [e() for _ in range(self.r.randint(0, 3))]
            shape = self.pick(["[%s]", "(%s,)", "dict"])
            if shape == "dict":
                return "{" + ", ".join(f"{self.pick([self.string(), '1', 'none', 'i'])}: {x}" for x in items) + "}"
            return shape % ", ".join(items) if items else "[]"
        if kind < 0.88:
            return f"'{self.pick(['', 'x '])}{{{self.pick(['', '0', 'k'])}{self.format_spec()}}}'.format({e()}, {self.pick(['1', '2.5', e()])}, k={e()})"
        if kind < 0.92:
            spec = "%" + self.pick(["", "-", "0", "+", " ", "#"]) + self.pick(["", "4", "*"]) + self.pick(["", ".2"]) + self.pick("sdrxXofegc%i")
            return f"'{spec}' % {self.pick([e(), f'({e()},)', f'({e()}, {e()})'])}"
        if kind < 0.95:
            return f"range({self.pick(['5', '1, 4', '6, 0, -2', self.atom()])})" + self.pick(["", " | list"])
        if kind < 0.97:
            return f"{self.pick(['2', '3', '-2', '1.5', '10'])} ** {self.pick(['2', '3', '-1', '0.5', '20', '2 ** 2'])}"
        return self.pick([f"dict(a={e()})", f"namespace(a={e()})", f"m({self.arguments(2, d)})", f"{self.string()} {self.string()}", f"loop.cycle({e()}, {e()})", f"loop.changed({e()})", "loop.index", f"loop.{self.pick(LOOP)}", f"caller({self.arguments(1, d)})", "varargs", "kwargs"])

    def tag(self, inside):
        left, right = self.pick(["", "", "", "-", "+"]), self.pick(["", "", "", "-", "+"])
        return "{%" + left + " " + inside + " " + right + "%}"

    def text(self):
        return self.pick(["", "", " ", "\n", "x", " y\n", "\n  ", "  z  \n\n", "{# c #}", "{#- c -#}\n", "é", "{% raw %}{{ r }}{% endraw %}", "{%- raw -%} r {%- endraw -%}", "\r\n"])

    def body(self, depth):
        return "".join(self.text() + self.statement(depth) for _ in range(self.r.randint(1, 3))) + self.text()

    def statement(self, depth):
        e, kind = (lambda: self.expression(2)), self.r.random()
        if depth <= 0 or kind < 0.45:
            return self.pick(["{{ %s }}", "{{ %s }}", "{{- %s -}}", "{{ %s -}}"]) % self.expression(3)
        b = lambda: self.body(depth - 1)  # noqa: E731
        if kind < 0.55:
            middle = f"{self.tag('elif ' + e())}{b()}" if self.maybe(0.3) else ""
            return self.tag("if " + e()) + b() + middle + (self.tag("else") + b() if self.maybe(0.5) else "") + self.tag("endif")
        if kind < 0.72:
            target = self.pick(["x", "v", "x, v", "k, v", "(a, v)"])
            over = self.pick([e(), "l", "objs", "d.items()", "nested", "range(3)", "u[:4]", "[[1, 2], [3, 4]]"])
            guard = f" if {e()}" if self.maybe(0.25) else ""
            jump = self.tag("if " + e()) + self.tag(self.pick(["break", "continue"])) + self.tag("endif") if self.maybe(0.2) else ""
            if self.maybe(0.12):
                return self.tag(f"for x in nested{guard} recursive") + "{% if x is iterable %}[{{ loop(x) }}]{% endif %}{{ loop.depth }}" + b() + self.tag("endfor")
            return self.tag(f"for {target} in {over}{guard}") + jump + b() + (self.tag("else") + b() if self.maybe(0.2) else "") + self.tag("endfor")
        if kind < 0.8:
            return self.pick([
                lambda: self.tag(f"set {self.pick(['v', 'i', 'ns'])} = {e()}"), lambda: self.tag(f"set v, i = {e()}, {e()}"),
                lambda: self.tag(f"set ns = namespace(a={e()}, b=1)"), lambda: self.tag(f"set ns.a = {e()}"),
                lambda: self.tag("set v") + b() + self.tag("endset"), lambda: self.tag("set v | upper | trim") + b() + self.tag("endset"),
            ])()
        if kind < 0.9:
            parameters = self.pick(["", "a", "a, v=1", "a, v=i", "x='d', v=x"])
            macro = self.tag(f"macro m({parameters})") + b() + self.pick(["", "{{ caller() }}", "{{ caller(1) if caller }}", "{{ varargs }}{{ kwargs }}"]) + self.tag("endmacro")
            return macro + self.pick(["{{ m() }}", "{{ m(1) }}", f"{{{{ m({e()}, {e()}) }}}}", "{{ m(1, zz=2) }}", "{{ m | string is string }}",
                                      self.tag(self.pick(["call m(1)", "call(v) m()", "call(v=3) m(2)"])) + b() + self.tag("endcall")])
        if kind < 0.94:
            return self.tag(f"filter {self.pick(['upper', 'trim', 'indent(2)', 'replace(1, 2)', 'e', 'title | length', self.keyword_filter(1)])}") + b() + self.tag("endfilter")
        if kind < 0.98:
            return self.tag(self.pick([f"with v = {e()}", f"with v = {e()}, i = v", "with"])) + b() + self.tag("endwith")
        return self.tag("generation") + b() + self.tag("endgeneration")

    def template(self):
        return "{{ %s }}" % self.expression(self.r.randint(1, 4)) if self.maybe(0.6) else self.body(self.r.randint(1, 2))


LAZY = ("map", "select", "reject", "unique", "batch", "slice", "items")
JSON_CONTEXT = json.dumps(CONTEXT)


def explain(source, want, answer):
    """Why a disagreement is a known one, or None."""
    if want is not None and " at 0x" in want.lower():
        return "addresses"
    if "complex numbers" in answer.get("error", ""):
        return "complex numbers"
    if want is not None and "error" in answer and any(f"| {name}" in source for name in LAZY):
        return "errors that a generator puts off"
    sliced = re.search(r"slice: |cannot be sliced", answer.get("error", ""))
    return "folded constants" if want is not None and sliced and "[" in source and ":" in source else None


def expire(*_):
    raise TimeoutError


def reference(source):
    """The text, or None for an error; the reason."""
    signal.alarm(5)
    try:
        return ENVIRONMENT.from_string(source).render(**json.loads(JSON_CONTEXT)), ""
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001 a template may raise anything
        return None, f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inferd", default=ROOT / "build/inferd")
    parser.add_argument("-n", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-v", "--verbose", action="store_true", help="show all disagreements, not the first 50")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, expire)
    warnings.simplefilter("ignore")
    line = json.dumps({"kwargs": CONTEXT, "now": "2025-01-15T12:34:56"}).encode() + b"\n"
    generator = Generator(options.seed)
    counts = dict.fromkeys(("the same text", "an error in both", "addresses", "errors that a generator puts off", "folded constants", "complex numbers", "over the budget", "too slow for Jinja2", "DIFFERENT"), 0)

    with tempfile.TemporaryDirectory() as folder:

        def inferd(numbered):
            number, source = numbered
            path = pathlib.Path(folder, f"{number}.jinja")
            path.write_bytes(source.encode())
            done = subprocess.run([options.inferd, "tokenize", "--chat-template", path, "--render-jsonl"], input=line, capture_output=True)
            path.unlink()
            return json.loads(done.stdout) if done.returncode == 0 else {"crash": done.returncode, "error": done.stderr.decode()}

        sources = [generator.template() for _ in range(options.n)]
        with ThreadPoolExecutor(4) as pool:
            for source, answer in zip(sources, pool.map(inferd, enumerate(sources))):
                try:
                    want, reason = reference(source)
                except TimeoutError:
                    counts["too slow for Jinja2"] += 1
                    continue
                got = answer.get("rendered")
                if "too many steps" in answer.get("error", "") or "too long" in answer.get("error", "") or "too large" in answer.get("error", ""):
                    kind = "over the budget"
                elif got == want and "crash" not in answer:
                    kind = "an error in both" if want is None else "the same text"
                elif "crash" not in answer and explain(source, want, answer):
                    kind = explain(source, want, answer)
                else:
                    kind = "DIFFERENT"
                    if options.verbose or counts[kind] < 50:
                        print(f"--- {source!r}\n  jinja2: {reason or want!r}\n  inferd: {answer}")
                counts[kind] += 1
    print(", ".join(f"{n} {what}" for what, n in counts.items()))
    return counts["DIFFERENT"] > 0


if __name__ == "__main__":
    sys.exit(main())
