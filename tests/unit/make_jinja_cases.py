#!/usr/bin/env python3
"""Writes data/jinja_cases.h: small templates with what Jinja2 makes of them (needs the jinja2 package, 3.1.6).

    python3 make_jinja_cases.py > data/jinja_cases.h

The environment is the one that transformers sets up for chat templates.
"""
import datetime
import json

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


NOW = datetime.datetime(2025, 1, 15, 12, 34, 56)
ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
)
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception
ENVIRONMENT.globals["strftime_now"] = lambda f: NOW.strftime(f)

CONTEXT = {
    "s": "  Hello, World\n", "e": "", "n": None, "t": True, "f": False, "i": 7, "z": 0, "neg": -7, "x": 2.5,
    "big": 123456789012345678901234567890, "l": [3, 1, 2], "el": [], "ed": {}, "ls": ["b", "a", "C", "a"],
    "d": {"b": 1, "a": {"k": "v"}, "items": "shadow", "c d": 3}, "nested": [[1, 2], [3, [4, 5]]],
    "u": "żółć 你好 👨‍👩‍👧 é ß ﬁ ΑΣ ǆ", "objs": [{"n": "b", "v": 2}, {"n": "a", "v": 1}, {"n": "c"}],
    "q": "it's \"q\" \\ \t\x01é\u200d", "nl": "l1\nl2\r\n\nl4\u2028x", "num": " 42 ", "fl": "3.75", "csv": "a,b,,c",
    "w": "the quick-brown fox -- jumps over-the lazy dog's back", "h": "<b>&'\"</b> <!-- c --> <i>x</i>",
    "p": [{"a": {"b": [10, 20]}}, {"a": {"b": [5, 50]}}],
}

TEMPLATES = r"""
a{{ 1 }}b
{{- 'a' -}} b {{- 'c' }}
a  {%- if t %} b {% endif -%}  c
a\n  {% if t %}\n  b\n  {% endif %}\n c
a\n  {%+ if t +%}\n  b\n  {%- endif %}\n c
a {# c #}\nb\n  {# c #}\nc {#- d -#} e {#+ f +#}\ng
{% raw %} {{ x }} {% if %} {# #} {% endraw %}|{%- raw -%} a {%- endraw -%} b
line\r\nline\rline\n
{{ 'x' }}\n
{{ 'x' }}\n\n
\n\n{% set a = 1 %}\n\n{{ a }}
{% if t %}1{% elif f %}2{% else %}3{% endif %}{% if f %}1{% elif t %}2{% else %}3{% endif %}{% if f %}1{% endif %}
{{ true }}{{ True }}{{ none }}{{ None }}{{ false }}{{ undefined_name }}
{{ 1 + 2 * 3 - 4 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ 7 % 3 }}|{{ -7 % 3 }}|{{ 7 % -3 }}|{{ 2 ** 10 }}|{{ 2 ** 3 ** 2 }}|{{ 2 ** -1 }}
{{ 7.5 // 2 }}|{{ -7.5 % 2 }}|{{ 7.5 % -2 }}|{{ 1 / 3 }}|{{ 10 / 5 }}|{{ 0.1 + 0.2 }}|{{ 1e16 }}|{{ 1e15 }}|{{ 1.5e-5 }}|{{ 0.0001 }}|{{ 5e-324 }}|{{ 1.7976931348623157e308 }}
{{ 1_000 }}|{{ 0x1F }}|{{ 0o17 }}|{{ 0b101 }}|{{ 1_0.5e1_0 }}|{{ 00 }}
{{ big }}|{{ big + 1 }}|{{ big - big }}|{{ big * big }}|{{ big // 7 }}|{{ big % 1000 }}|{{ -big // 7 }}|{{ -big % 7 }}|{{ big > 1.5 }}|{{ big == big + 0 }}|{{ big / 10 }}
{{ 9223372036854775807 + 1 }}|{{ -9223372036854775807 - 2 }}|{{ 9223372036854775807 * 9223372036854775807 }}|{{ 10 ** 40 // 10 ** 20 }}|{{ 2 ** 64 % 10 }}|{{ 3037000500 * 3037000500 }}
{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ 1 == 1.0 }}|{{ 1 == true }}|{{ 'a' == 'a' }}|{{ [1] == [1.0] }}|{{ (1,) == [1] }}|{{ {'a': 1} == {'a': 1.0} }}|{{ 'a' < 'b' }}|{{ [1, 2] < [1, 3] }}|{{ 1 != 2 }}|{{ 2 >= 2 }}|{{ none == none }}|{{ undef == undef2 }}
{{ t and f }}|{{ t and 'x' }}|{{ f or 'y' }}|{{ not t }}|{{ not f and t }}|{{ e or n or 0 or [] }}|{{ 1 and 2 and 3 }}
{{ 1 in [1, 2] }}|{{ 'a' in 'abc' }}|{{ 'x' not in 'abc' }}|{{ 'b' in d }}|{{ 3 in range(5) }}|{{ 7 in range(0, 10, 2) }}|{{ none in [none] }}|{{ '' in 'x' }}|{{ not 'z' in 'abc' }}
{{ 'a' ~ 1 ~ none ~ 2.0 ~ [1] }}|{{ 'a' + 'b' }}|{{ [1] + [2] }}|{{ (1,) + (2,) }}|{{ 'ab' * 3 }}|{{ 2 * 'x' }}|{{ [0] * 2 }}|{{ 'x' * -1 }}
{{ 'yes' if t else 'no' }}|{{ 'yes' if f }}|{{ 'a' if f else 'b' if f else 'c' }}
{{ -i }}|{{ +i }}|{{ - -i }}|{{ -x }}|{{ -1 | abs }}|{{ +true }}
{{ l[0] }}|{{ l[-1] }}|{{ l[10] }}|{{ l[1:] }}|{{ l[:-1] }}|{{ l[::-1] }}|{{ l[::2] }}|{{ l[5:] }}|{{ l[-2:] }}|{{ (1, 2, 3)[1:] }}|{{ range(10)[2:8:3] | list }}|{{ range(10)[::-1] }}
{{ u[0] }}|{{ u[-1] }}|{{ u[2:6] }}|{{ u[::-1] }}|{{ u[::3] }}|{{ u[-4:] }}|{{ s[100:] }}|{{ 'abc'[1] }}|{{ 'abc'[:0] }}
{{ d.b }}|{{ d['a'] }}|{{ d.a.k }}|{{ d['c d'] }}|{{ d.missing }}|{{ d['items'] }}|{{ d.get('b') }}|{{ d.get('zz') }}|{{ d.get('zz', 5) }}|{{ nested.1.0 }}|{{ nested[1][1][0] }}
{{ d.keys() | list }}|{{ d.values() | list }}|{{ d.items() | list }}|{{ d.a.items() }}|{{ ed.items() }}|{{ d.keys() | length }}
{{ {'a': 1, 'b': [true, none], 3: 'x', none: 1.5} }}|{{ [] }}|{{ () }}|{{ (1,) }}|{{ 1, 2 }}|{{ {} }}|{{ [1, 'a', "b'c", 'd"e', 'f\'"g'] }}
{{ [q, u, '\x7f\u00a0\u3000\U0001F600\u200b'] }}
{{ "tab\there" }}|{{ 'nl\nx' }}|{{ 'q\'q' }}|{{ '\x41\u00e9\U0001F600\101' }}|{{ 'a\qb' }}|{{ 'a' 'b' "c" }}|{{ '\a\b\f\v' | tojson }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in l %}{{ loop.previtem | default('-') }}<{{ x }}>{{ loop.nextitem | default('-') }} {% endfor %}
{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}
{% for x in el %}{{ x }}{% else %}empty{% endfor %}|{% for x in undef %}x{% else %}none{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}={{ x }}{{ loop.last }} {% else %}no{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{% for (a, (b, c)) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in 'aé你' %}{{ x }}-{% endfor %}|{% for x in d %}{{ x }},{% endfor %}|{% for x in (1, 2) %}{{ x }}{% endfor %}|{% for x in range(3, 0, -1) %}{{ x }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}|{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% continue %}{% else %}else{% endfor %}|{% for x in l %}{% break %}{% else %}else{% endfor %}
{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}
{% for x in l %}{% set i = x %}{% endfor %}{{ i }}|{% set y = 1 %}{% for x in l %}{{ y }}{% set y = x %}{{ y }} {% endfor %}{{ y }}
{% for x in nested recursive %}{% if x is iterable %}[{{ loop(x) }}]{{ loop.depth }}{% else %}{{ x }}{% endif %}{% endfor %}
{% set ns = namespace(a=1, b='x') %}{% for x in l %}{% set ns.a = ns.a + x %}{% set ns.c = x %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.zz }}{{ ns.zz is defined }}
{% set ns = namespace(f=false) %}{% for x in l if not ns.f %}{{ x }}{% set ns.f = x == 1 %}{% endfor %}
{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set c = 3, %}{{ c }}{% set (d1, e1) = [4, 5] %}{{ d1 + e1 }}
{% set b %}  text {{ i }}\n{% endset %}[{{ b }}]{% set b | upper | trim %} t {% endset %}[{{ b }}]
{% filter upper | replace('A', 'x') %}abc {{ i }}{% endfilter %}
{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a }}|{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}|{% with i = i + 1 %}{{ i }}{% endwith %}{{ i }}
{% macro m(a, b=2, c=a) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}{{ m.name }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }}{{ m() }}
{% macro m(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) m(5) %}y={{ y }}{{ i }}{% endcall %}{% macro w() %}{{ caller() if caller }}{% endmacro %}{{ w() }}
{% macro g(n) %}{{ n }}{% if n > 0 %},{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(5) }}
{% macro outer() %}{% macro inner() %}i{{ i }}{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}
{% set y = 1 %}{% macro m() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ m() }}
{% macro m(i) %}{{ i }}{% endmacro %}{{ m() }}|{{ m(none) }}|{{ m(*[3]) }}|{{ m(**{'i': 4}) }}
{% macro m() %}\n  body\n{% endmacro %}[{{ m() }}][{{ m() | trim }}]
{% for x in l %}{{ i }}{% endfor %}{% set i = 0 %}
{% macro m() %}{{ s }}{% endmacro %}[{{ m() }}]{% set s = 1 %}{{ m() }}
{% if f %}{% set i = 1 %}{% endif %}{{ i }}|{% if t %}{% set z = 1 %}{% else %}{% set z = 2 %}{% endif %}{{ z }}
{% set x %}{{ x }}{% endset %}{{ x }}|{% set i = i + 1 %}{{ i }}
{% generation %}a{{ i }}{% set i = 1 %}{% endgeneration %}{{ i }}
{{ f is defined }}|{{ undef is defined }}|{{ undef is undefined }}|{{ d.zz is defined }}|{{ n is none }}|{{ t is true }}|{{ f is false }}|{{ 1 is true }}|{{ t is boolean }}|{{ 1 is boolean }}
{{ 1 is integer }}|{{ t is integer }}|{{ big is integer }}|{{ 1.5 is float }}|{{ 1 is number }}|{{ t is number }}|{{ '1' is number }}|{{ s is string }}|{{ d is mapping }}|{{ l is mapping }}|{{ l is iterable }}|{{ 5 is iterable }}|{{ s is iterable }}
{{ l is sequence }}|{{ d is sequence }}|{{ s is sequence }}|{{ d.keys() is sequence }}|{{ undef is sequence }}|{{ range is callable }}|{{ s is callable }}|{{ 3 is odd }}|{{ 4 is even }}|{{ 9 is divisibleby 3 }}|{{ 9 is divisibleby(2) }}
{{ 'a' is lower }}|{{ 'A' is upper }}|{{ 'Aa' is upper }}|{{ '1' is lower }}|{{ 1 is sameas 1 }}|{{ n is sameas none }}|{{ 1 is in [1] }}|{{ 1 is not in [1] }}|{{ 1 is eq 1 }}|{{ 1 is ne 1 }}|{{ 1 is lt 2 }}|{{ 1 is ge 2 }}|{{ 'upper' is filter }}|{{ 'nope' is filter }}|{{ 'odd' is test }}
{{ not 1 is odd }}|{{ 1 is odd and 2 is even }}|{{ (l | length) is gt 2 }}|{{ l | first is eq 3 }}|{{ s is not none }}|{{ d.b is defined and d.b }}
{{ 'abc' | upper }}|{{ u | upper }}|{{ u | lower }}|{{ u | title }}|{{ u | capitalize }}|{{ u.title() }}|{{ u.swapcase() }}|{{ u.casefold() }}|{{ 'hello wORLD-foo (bar)' | title }}|{{ "they're" | title }}|{{ "they're".title() }}
{{ s | trim }}|{{ 'xxaxx' | trim('x') }}|{{ '\u3000a\u00a0' | trim }}|{{ n | trim }}|{{ undef | trim }}|{{ 5 | upper }}
{{ 'a-b-a' | replace('a', 'X') }}|{{ 'a-b-a' | replace('a', 'X', 1) }}|{{ 'ab' | replace('', '.') }}|{{ 'abc' | replace('', '.', 2) }}|{{ 5 | replace(5, 6) }}
{{ l | join(', ') }}|{{ l | join }}|{{ [1, none, 'x'] | join('-') }}|{{ objs | join(',', attribute='n') }}|{{ 'abc' | join('.') }}|{{ undef | join }}
{{ l | first }}|{{ l | last }}|{{ el | first }}|{{ '' | first is undefined }}|{{ 'abc' | last }}|{{ l | length }}|{{ u | length }}|{{ d | count }}|{{ undef | length }}
{{ l | sort }}|{{ l | sort(reverse=true) }}|{{ ls | sort }}|{{ ls | sort(case_sensitive=true) }}|{{ objs | sort(attribute='n') | map(attribute='n') | list }}|{{ p | sort(attribute='a.b.0') | map(attribute='a.b.1') | list }}|{{ objs | sort(attribute='n,v') | length }}
{{ d | dictsort }}|{{ {'b': 2, 'A': 1} | dictsort }}|{{ {'b': 2, 'A': 1} | dictsort(true) }}|{{ {'b': 2, 'a': 3} | dictsort(by='value') }}|{{ {'b': 2, 'a': 3} | dictsort(false, 'value', true) }}
{{ ls | unique | list }}|{{ ['a', 'A'] | unique | list }}|{{ ['a', 'A'] | unique(true) | list }}|{{ [1, 1.0, true, 2] | unique | list }}|{{ l | min }}|{{ l | max }}|{{ ls | max }}|{{ el | max }}|{{ objs | selectattr('v') | min(attribute='v') }}
{{ l | sum }}|{{ objs | selectattr('v', 'defined') | sum('v') }}|{{ [0.1, 0.2] | sum }}|{{ l | sum(start=10) }}|{{ [[1], [2]] | sum(start=[]) }}|{{ l | reverse | list }}|{{ 'abc' | reverse }}|{{ d | reverse | list }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }}|{{ [1, 2, 3] | batch(2, 'x') | list }}|{{ [1, 2, 3, 4, 5] | slice(2) | list }}|{{ [1, 2, 3] | slice(2, 'x') | list }}|{{ objs | groupby('n') }}|{% for g in objs | groupby('v', default=0) %}{{ g.grouper }}{{ g.list | length }}{% endfor %}
{{ objs | map(attribute='n') | list }}|{{ objs | map(attribute='v', default=0) | list }}|{{ ls | map('upper') | join }}|{{ ['1', '2'] | map('int') | sum }}|{{ ls | map('replace', 'a', 'z') | list }}|{{ [' a '] | map('trim') | list }}|{{ nested | map('first') | list }}|{{ [[1, 2]] | map(attribute=1) | list }}
{{ l | select('odd') | list }}|{{ l | reject('gt', 1) | list }}|{{ [0, 1, '', 'a'] | select | list }}|{{ objs | selectattr('v') | map(attribute='n') | list }}|{{ objs | selectattr('n', 'equalto', 'a') | list }}|{{ objs | rejectattr('v', 'defined') | list }}|{{ objs | rejectattr('n', 'in', ['a', 'b']) | list }}
{{ undef | default('x') }}|{{ '' | default('x') }}|{{ '' | default('x', true) }}|{{ n | d('y') }}|{{ n | d('y', true) }}|{{ undef | default }}|{{ d.zz | default('q') }}
{{ '42' | int }}|{{ num | int }}|{{ 'x' | int }}|{{ 'x' | int(9) }}|{{ '3.9' | int }}|{{ '0x1f' | int(0, 16) }}|{{ 3.9 | int }}|{{ -3.9 | int }}|{{ true | int }}|{{ none | int }}|{{ '1_000' | int }}|{{ '12345678901234567890123' | int }}|{{ '٣' | int }}|{{ 1e20 | int }}
{{ fl | float }}|{{ 'x' | float }}|{{ 'x' | float(1.5) }}|{{ 3 | float }}|{{ '1e3' | float }}|{{ ' inf ' | float }}|{{ 'nan' | float }}|{{ -3 | abs }}|{{ -2.5 | abs }}|{{ 2.5 | round }}|{{ 3.5 | round }}|{{ 2.675 | round(2) }}|{{ 42.55 | round(1, 'floor') }}|{{ 42.51 | round(1, 'ceil') }}|{{ 5 | round }}|{{ 1234 | round(-2) }}|{{ 1250 | round(-2) }}
{{ d | tojson }}|{{ u | tojson }}|{{ u | tojson(ensure_ascii=true) }}|{{ q | tojson }}|{{ '<a&b>' | tojson }}|{{ [none, true, 1.0, 1e22, big, -0.0] | tojson }}|{{ (1, 2) | tojson }}
{{ d | tojson(indent=2) }}|{{ [[], {}, [1]] | tojson(indent=1) }}|{{ l | tojson(indent=0) }}|{{ d | tojson(indent='--') }}
{{ d | tojson(sort_keys=true) }}|{{ d | tojson(separators=(',', ':')) }}|{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}|{{ d | tojson(indent=2, separators=(',', ': '), sort_keys=true) }}
{{ 'l1\nl2\n\nl4' | indent }}|{{ 'l1\nl2' | indent(2, true) }}|{{ 'l1\n\nl2' | indent(width=3, blank=true) }}|{{ 'a\nb' | indent('> ') }}|{{ '' | indent(2, true) }}|{{ 'a\n' | indent(2) }}
{{ 'foo bar baz qux' | truncate(9) }}|{{ 'foo bar baz qux' | truncate(9, true) }}|{{ 'foo bar baz qux' | truncate(11) }}|{{ 'foo bar baz qux' | truncate(11, false, '..', 0) }}|{{ w | wordwrap(10) }}|{{ 'abcdefghij' | wordwrap(4) }}|{{ 'abcdefghij' | wordwrap(4, false) }}|{{ 'a b\nc d' | wordwrap(3, wrapstring='|') }}
{{ w | wordcount }}|{{ 'a' | center(5) }}|{{ 'ab' | center(5) }}|{{ h | escape }}|{{ h | striptags }}|{{ h | e | e }}|{{ h | forceescape }}|{{ h | safe }}|{{ (h | safe) + '<' }}|{{ '<' + (h | safe) }}|{{ '%s' | safe | format('<') }}|{{ (h | safe) ~ '<' }}
{{ 'http://x.y/?a=1&b=2 ü' | urlencode }}|{{ {'a b': 1, 'c': 'd/e'} | urlencode }}|{{ [('k', 'v')] | urlencode }}|{{ {'class': 'x<', 'id': none, 'n': 5} | xmlattr }}|{{ 1234567 | filesizeformat }}|{{ 1 | filesizeformat }}|{{ 1500 | filesizeformat(true) }}|{{ 10 | string + 'x' }}
{{ '%s, %s!' | format('a', 1) }}|{{ '%(x)s' | format(x=2) }}|{{ '%d|%5d|%-5d|%05d|%+d|%x|%X|%#x|%o' % (1, 2, 3, 4, 5, 255, 255, 255, 8) }}|{{ '%.2f|%8.3f|%e|%g|%G' % (3.14159, 2.5, 12345.678, 0.00001, 1e20) }}|{{ '%r|%c|%%' % ('a', 'b') }}|{{ '%s' % [1] }}|{{ '%5.1s|' % 'abc' }}|{{ '%*d' % (4, 7) }}
{{ '{} {}'.format(1, 'a') }}|{{ '{1}{0}{1}'.format('a', 'b') }}|{{ '{x}{y!r}'.format(x=1, y='q') }}|{{ '{0[1]}{1[k]}'.format(l, d.a) }}|{{ '{{}}'.format() }}|{{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }}|{{ '{:05d}|{:+d}|{:,}|{:_}|{:x}|{:#b}|{:e}|{:.2f}|{:%}|{:10,.2f}'.format(42, 7, 1234567, 1234567, 255, 5, 1234.5, 2.0, 0.5, 12345.678) }}|{{ '{:{w}}|'.format('a', w=4) }}|{{ '{:.2}'.format('abc') }}|{{ '{}'.format(1.0) }}|{{ '{:g}|{:.3}'.format(1.5, 2.0) }}
{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'xxabxx'.strip('x') }}|{{ 'abc'.rstrip('cb') }}|{{ 'aéa'.strip('éa') }}|{{ csv.split(',') }}|{{ ' a  b '.split() }}|{{ csv.split(',', 1) }}|{{ csv.rsplit(',', 1) }}|{{ ' a b c '.split(none, 1) }}|{{ ' a b c '.rsplit(none, 1) }}|{{ ''.split() }}|{{ ''.split(',') }}|{{ 'a<>b<>c'.split('<>', maxsplit=1) }}
{{ nl.splitlines() }}|{{ nl.splitlines(true) }}|{{ 'a.b.c'.partition('.') }}|{{ 'a.b.c'.rpartition('.') }}|{{ 'abc'.partition('x') }}|{{ 'abc'.rpartition('x') }}|{{ 'a\tb'.expandtabs(4) }}
{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'abc'.startswith('b', 1) }}|{{ 'abcabc'.find('c') }}|{{ 'abcabc'.find('c', 3) }}|{{ 'abc'.find('z') }}|{{ 'abcabc'.rfind('c') }}|{{ 'abcabc'.rfind('c', 0, 5) }}|{{ u.find('你') }}|{{ 'abc'.index('b') }}|{{ 'aaa'.count('a') }}|{{ 'aaa'.count('aa') }}|{{ 'abc'.count('') }}|{{ 'abcabc'.count('a', 1) }}
{{ 'a-b'.replace('-', '+') }}|{{ 'aaa'.replace('a', 'b', 2) }}|{{ '5'.zfill(3) }}|{{ '-5'.zfill(4) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '*') }}|{{ 'ab'.center(5, '.') }}|{{ 'abc'.center(6, '.') }}|{{ 'pre-x'.removeprefix('pre-') }}|{{ 'x.txt'.removesuffix('.txt') }}|{{ '-'.join(['a', 'b']) }}|{{ ','.join('abc') }}
{{ '12'.isdigit() }}|{{ '²'.isdigit() }}|{{ '²'.isdecimal() }}|{{ '½'.isnumeric() }}|{{ '一'.isnumeric() }}|{{ 'ab'.isalpha() }}|{{ 'é你'.isalpha() }}|{{ 'a1'.isalnum() }}|{{ ' '.isspace() }}|{{ '\x1c'.isspace() }}|{{ ''.isspace() }}|{{ 'Ab Cd'.istitle() }}|{{ 'aB'.islower() }}|{{ 'AB1'.isupper() }}|{{ 'a_1'.isidentifier() }}|{{ '\u00ad'.isprintable() }}|{{ 'é'.isascii() }}
{{ l.index(2) }}|{{ l.count(1) }}|{{ (1, 2).index(2) }}|{{ d.copy() }}|{{ 2.0.is_integer() }}|{{ (5).bit_length() }}|{{ l.append is defined }}|{{ d.update is defined }}|{{ s.__class__ }}|{{ d._x }}
{{ dict(a=1, b='x') }}|{{ dict(d.a, z=2) }}|{{ dict([['p', 1]]) }}|{{ range(5) }}|{{ range(1, 9, 2) }}|{{ range(0) | list }}|{{ namespace(a=1) }}
{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}|{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}
{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%d %b %Y, %A %B %-d %j') }}|[{{ strftime_now('') }}]
{{ d | pprint }}|{{ {'key': [1, 2, 3] * 20, 'text': 'words ' * 30, 'b': {'c': 'd'}} | pprint }}|{{ 'word ' * 40 | int }}|{{ ('some words ' * 12) | pprint }}
{{ (l | map('string') | list) is sequence }}|{{ (l | map('string')) is sequence }}|{{ (l | select('odd')) is iterable }}|{{ 1 if l | select('gt', 10) else 2 }}|{{ l | select('gt', 10) | first is defined }}
{% print 1, 2 %}{% set x = 5 -%}   {{ x }}
{{ l | attr('count') is callable }}|{{ d | attr('b') is defined }}|{{ self is defined }}|{{ loop is defined }}
{{ [1, 2] | tojson | length }}|{{ {'a': {'b': [1, {'c': none}]}}['a']['b'][1] | tojson }}
{{ '{:c}{:3c}{:<3c}{:03c}'.format(65, 8364, 66, 67) }}|{{ '%c%3c%-3c' % (65, 'b', 8364) }}
{{ '{:c}'.format(-1) }}
{{ '{:-c}'.format(65) }}
{{ range(9)[-1:-1:-2] }}|{{ range(9)[:1:-2] }}|{{ range(9)[7:-3:] }}|{{ range(1, 20, 3)[1:4] }}|{{ range(9)[::4] | list }}
{{ '%#4.2x' % 0 }}|{{ '%#08.2x' % 15 }}|{{ '%+08.3d' % 5 }}|{{ '%#.3o' % 8 }}|{{ '%-8.3d|' % 5 }}|{{ '%%' % () }}
{{ d.items() == d.items() }}|{{ d.keys() == {'items': 1, 'b': 2, 'a': 3, 'c d': 4}.keys() }}|{{ d.values() == d.values() }}|{{ d.keys() == ed.keys() }}
{{ big | int(base='x') }}|{{ '12' | int(3, 'a') }}|{{ 'x' | int(3, 'a') }}|{{ '{:05}'.format('a') }}|{{ [1, 2] | sort(reverse=1) }}|{{ 'a\nb'.splitlines(1) }}
{% filter replace('a', i) %}a{% endfilter %}|{% set v | length %}abc{% endset %}{{ v + 1 }}
{% filter length %}abc{% endfilter %}
{{ l | sort(reverse='x') }}
{{ d | dictsort(reverse=none) }}
{{ 'a'.splitlines('x') }}
{{ '%5%' % (1,) }}
{{ '{:0=3}'.format('a') }}
{{ '{:-3}'.format('a') }}
{{ '{:,}'.format('a') }}
{{ l in d.keys() }}
{{ l is filter }}
{{ undef.attr }}
{{ undef + 1 }}
{{ undef['x'] }}
{{ undef() }}
{{ n.x }}|{{ n.x.y }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ l + 'a' }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 'a' < 1 }}
{{ [3, 'a'] | sort }}
{{ 5 | length }}
{{ (l | map('upper')) | length }}
{{ 1 in 5 }}
{{ 1 in 'abc' }}
{{ l.append(1) }}
{{ d.update({}) }}
{{ d.pop('b') }}
{{ ''.join([1]) }}
{{ 'a'.split('') }}
{{ 'a'.index('z') }}
{{ 'a'.nope() }}
{{ s() }}
{{ {[1]: 2} }}
{{ {'a': undef} | tojson }}
{{ range(1000000) }}
{{ '{}'.format() }}
{{ '{0.__class__}'.format(1) }}
{{ '%d' % 'a' }}
{{ '%s' % (1, 2) }}
{{ raise_exception('stop: ' ~ i) }}
{% set a, b = [1] %}
{% for a, b in l %}{% endfor %}
{% set i.x = 1 %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=1) }}
{% macro m(a) %}{% endmacro %}{% call m(1) %}{% endcall %}
{{ x | nope }}
{{ x is nope }}
{% if f %}{{ x | nope }}{% endif %}ok
{{ 'ok' if t else (x | nope) }}
{% nope %}
{% if t %}
{{ 1 +  }}
{{ (1 }}
{{ 'a }}
{% for x in l %}{% endif %}
{% endfor %}
{# open
{% raw %} open
{{ a b }}
{{ 1 is odd is even }}
{% set true = 1 %}
{{ f(a=1, 2) }}
{% macro m(a=1, b) %}{% endmacro %}
{% break %}
""".strip("\n").split("\n")


def unfold(line):
    """The lines above hold whole templates: outside of string literals, \\n and \\r stand for themselves."""
    out, quote, inside, i = [], None, 0, 0
    while i < len(line):
        two = line[i : i + 2]
        if not inside and two in ("\\n", "\\r"):
            out.append("\n" if two == "\\n" else "\r")
            i += 2
            continue
        if not inside and two in ("{{", "{%"):
            inside = 1
        elif inside and not quote and two in ("}}", "%}"):
            inside = 0
        elif inside and quote and line[i] == "\\":
            out.append(two)
            i += 2
            continue
        elif inside and line[i] in "'\"":
            quote = None if quote == line[i] else quote or line[i]
        out.append(line[i])
        i += 1
    return "".join(out)


def c_string(s):
    out, last_hex = [], False
    for b in s.encode():
        c = chr(b)
        if c in '"\\':
            out.append("\\" + c)
        elif 32 <= b < 127:
            out.append('" "' + c if last_hex and c in "0123456789abcdefABCDEF" else c)
            last_hex = False
            continue
        else:
            out.append(f"\\x{b:02x}" if b != 10 else "\\n")
            last_hex = b != 10
            continue
        last_hex = False
    return '"' + "".join(out).replace("??", '?" "?') + '"'


def main():
    print("/* Written by make_jinja_cases.py with Jinja2 %s. NULL: an error. */" % "3.1.6")
    print("static const char jinja_context[] =\n    %s;\n" % c_string(json.dumps(CONTEXT, ensure_ascii=False)))
    print("static const struct {\n    const char *source, *rendered;\n    bool refused; /* by raise_exception: rendered is the message */\n} jinja_cases[] = {")
    for line in TEMPLATES:
        source = unfold(line)
        refused, rendered = False, None
        try:
            rendered = ENVIRONMENT.from_string(source).render(**CONTEXT)
        except jinja2.exceptions.TemplateError as error:
            refused = type(error) is jinja2.exceptions.TemplateError
            rendered = str(error) if refused else None
        except Exception:
            pass
        print("    {%s,\n     %s, %s}," % (c_string(source), "NULL" if rendered is None else c_string(rendered), "true" if refused else "false"))
    print("};")


if __name__ == "__main__":
    main()
