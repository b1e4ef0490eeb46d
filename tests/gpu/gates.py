"""The CUDA kernels held to kernels.table, without a GPU: gates.py [--markdown FILE] REPORT... OBJECT...

REPORT is what ptxas said (NAME.ptxas), OBJECT what nvcc made of it (NAME.o), whose instructions `cuobjdump -sass` tells;
INFERD_CUOBJDUMP names that program if it is not on the path or beside nvcc. The table of results is printed; --markdown
writes it into FILE (BENCHMARKS.md) in place of the section of its name. Exit code: 0 all held, 1 not, 77 nothing to look at.
"""

import fnmatch
import glob
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

import occupancy

HERE = os.path.dirname(os.path.abspath(__file__))
SECTION = "## CUDA kernels, static; emulated only"
SKIPPED = 77  # meson's
ARCHITECTURES = ("sm_80", "sm_90")  # looked at; others have limits in between


@dataclass
class Kernel:
    """One kernel for one architecture."""

    architecture: str
    name: str
    registers: int = 0
    stack: int = 0
    spills: int = 0  # bytes stored and loaded
    shared: int = 0  # static
    instructions: dict = None  # opcode -> how often; None: not known

    def count(self, wanted):
        return sum(n for opcode, n in self.instructions.items() if has_parts(opcode, wanted))


@dataclass
class Row:
    pattern: str
    hot: bool
    registers: int
    threads: int
    shared: int
    blocks: dict  # architecture -> at least
    instructions: list
    kernels: list = field(default_factory=list)


def has_parts(opcode, wanted):
    """LDGSTS.E.BYPASS.LTC128B.128 has LDGSTS.128: the first part, and the others somewhere behind it in order."""
    have = iter(opcode.split("."))
    parts = wanted.split(".")
    return next(have) == parts[0] and all(part in have for part in parts[1:])


def read_table(text):
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 7 or words[1] not in ("hot", "cold"):
            raise ValueError(f"line {number} of the table: seven columns are needed, the second hot or cold")
        least = dict(zip(ARCHITECTURES, map(int, words[5].split("/")), strict=True))
        rows.append(Row(words[0], words[1] == "hot", int(words[2]), int(words[3]), int(words[4]), least,
                        [] if words[6] == "-" else words[6].split(",")))
    return rows


def plain_names(mangled):
    """{mangled: name with template arguments, without parameters, result and spaces}"""
    mangled = sorted(set(mangled))
    out = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
    return {m: plain_name(d) for m, d in zip(mangled, out.splitlines(), strict=True)}


def plain_name(demangled):
    name = demangled.replace("(anonymous namespace)::", "").replace("(bool)1", "true").replace("(bool)0", "false")
    depth, end = 0, len(name)
    for i, c in enumerate(name):  # the parameters begin at the first bracket outside of template arguments
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            end = i
            break
    name = name[:end]
    depth, begin = 0, 0
    for i, c in enumerate(name):  # a template's name stands behind its result
        depth += (c == "<") - (c == ">")
        if c == " " and depth == 0:
            begin = i + 1
    return re.sub(r"\(\w+\)(?=-?\d)", "", name[begin:].replace(" ", ""))


def read_ptxas(text):
    """Kernels of one report of `ptxas -v`, by (architecture, mangled name)."""
    kernels, now = {}, None
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            now = kernels[match[2], match[1]] = Kernel(match[2], match[1])
        elif "Function properties for" in line:
            function = re.search(r"Function properties for '?([^'\s]+)", line)[1]
            now = now if now is not None and now.name == function else None
        elif now is None:
            continue
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            now.stack, now.spills = int(match[1]), int(match[2]) + int(match[3])
        elif match := re.search(r"Used (\d+) registers", line):
            now.registers = int(match[1])
            smem = re.search(r"(\d+) bytes smem", line)
            now.shared = int(smem[1]) if smem else 0
    return kernels


def read_sass(text):
    """{(architecture, mangled name): {opcode: how often}} of what `cuobjdump -sass` prints."""
    found, architecture, now = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"\s*code for (\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            now = found.setdefault((architecture, match[1]), {})
        elif now is not None and (match := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?([A-Z][\w.]*)", line)):
            now[match[1]] = now.get(match[1], 0) + 1
    return found


def find_cuobjdump():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    places = [os.environ.get("INFERD_CUOBJDUMP", ""), shutil.which("cuobjdump") or "", os.path.join(os.path.dirname(nvcc), "cuobjdump")]
    places += glob.glob(os.path.join(sys.prefix, "lib", "python3*", "site-packages", "nvidia", "*", "bin", "cuobjdump"))
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def disassemble(path):
    tool = find_cuobjdump()
    if tool is None:
        return None
    env = {**os.environ, "PATH": os.path.dirname(tool) + os.pathsep + os.environ.get("PATH", "")}  # it calls nvdisasm
    found = {}
    for architecture in ARCHITECTURES:
        found |= read_sass(subprocess.run([tool, "-sass", "-arch", architecture, path], capture_output=True, text=True, check=True, env=env).stdout)
    return found


def name_kernels(kernels):
    names = plain_names(mangled for _, mangled in kernels)
    for kernel in kernels.values():
        kernel.name = names[kernel.name]
    return list(kernels.values())


def blocks_of(row, kernel):
    return occupancy.blocks(kernel.architecture, kernel.registers, row.threads, row.shared + kernel.shared)


def faults(row, kernel):
    """What is wrong with a kernel, in words."""
    wrong = []
    if kernel.registers > row.registers:
        wrong.append(f"{kernel.registers} registers, of {row.registers} allowed")
    if blocks_of(row, kernel) < row.blocks[kernel.architecture]:
        wrong.append(f"{blocks_of(row, kernel)} blocks a multiprocessor, {row.blocks[kernel.architecture]} wanted")
    if row.hot and kernel.spills:
        wrong.append(f"spills {kernel.spills} bytes")
    if row.hot and kernel.stack:
        wrong.append(f"a stack of {kernel.stack} bytes")
    if kernel.instructions is not None:
        local = kernel.count("LDL") + kernel.count("STL")
        if row.hot and local:
            wrong.append(f"{local} instructions on local memory")
        wrong += [f"no {wanted}" for wanted in row.instructions if not kernel.count(wanted)]
    return [f"{kernel.architecture} {kernel.name}: {what}" for what in wrong]


def check(rows, kernels):
    """Every fault; fills in rows[i].kernels."""
    wrong = []
    for kernel in kernels:
        row = next((r for r in rows if fnmatch.fnmatchcase(kernel.name, r.pattern.replace("[", "[[]"))), None)
        if row is None:
            wrong.append(f"{kernel.architecture} {kernel.name}: no row of the table is for it ({kernel.registers} registers)")
            continue
        row.kernels.append(kernel)
        wrong += faults(row, kernel)
    wrong += [f"{row.pattern}: a row of the table without a kernel" for row in rows if not row.kernels]
    return wrong


def report(rows):
    """Lines of a Markdown table: a row of kernels.table and an architecture each, the worst of its kernels."""
    lines = ["| kernels | | how many | registers | spills, bytes | shared, bytes | threads | blocks/SM | instructions |", "|---" * 9 + "|"]
    for row in rows:
        for architecture in sorted({k.architecture for k in row.kernels}):
            ks = [k for k in row.kernels if k.architecture == architecture]
            least = min(blocks_of(row, k) for k in ks)
            found = [] if any(k.instructions is None for k in ks) else [f"{w} × {min(k.count(w) for k in ks)}" for w in row.instructions]
            lines.append(f"| `{row.pattern}` | {architecture} | {len(ks)} | {max(k.registers for k in ks)} | {max(k.spills for k in ks)} | "
                         f"{row.shared + max(k.shared for k in ks)} | {row.threads} | {least} | {', '.join(found)} |")
    return lines


def write_section(path, lines):
    """Replace the section of our name in a Markdown file, or put it at the end."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    begin = text.find(SECTION + "\n")
    before, after = (text.rstrip("\n") + "\n\n", "") if begin < 0 else (text[:begin], text[begin + len(SECTION):])
    end = after.find("\n## ")
    rest = "" if end < 0 else "\n" + after[end + 1:]
    body = f"""{SECTION}

What nvcc makes of the kernels for an A100 (sm_80) and an H100 or H200 (sm_90), without a GPU: nothing here is a speed, and the kernels have run on the
emulator only. Of the kernels of a row the worst counts: most registers, fewest blocks a multiprocessor, fewest instructions of each kind in the code.
Budgets: [kernels.table](tests/gpu/kernels.table), held by the suite `gpu-static`. Written by `tests/gpu/gates.py --markdown BENCHMARKS.md`.

"""
    with open(path, "w", encoding="utf-8") as f:
        f.write(before + body + "\n".join(lines) + "\n" + rest)


def main(arguments):
    markdown = None
    if arguments[:1] == ["--markdown"]:
        markdown, arguments = arguments[1], arguments[2:]
    kernels = {}
    for path in (a for a in arguments if a.endswith(".ptxas")):
        with open(path, encoding="utf-8") as f:
            kernels |= {key: k for key, k in read_ptxas(f.read()).items() if k.architecture in ARCHITECTURES}
    if not kernels:
        print("no kernel was compiled: nvcc was not found when this was configured")
        return SKIPPED
    objects = [a for a in arguments if not a.endswith(".ptxas")]
    if find_cuobjdump() is None:
        print("cuobjdump was not found: registers and spills are looked at, instructions are not")
    else:
        for path in objects:
            for key, instructions in disassemble(path).items():
                if key in kernels:
                    kernels[key].instructions = instructions
        missing = [f"{k.architecture} {k.name}: not in what cuobjdump prints" for k in kernels.values() if not k.instructions]
        if missing:
            print("\n".join(missing))
            return 1
    with open(os.path.join(HERE, "kernels.table"), encoding="utf-8") as f:
        rows = read_table(f.read())
    wrong = check(rows, name_kernels(kernels))
    lines = report(rows)
    print("\n".join(lines))
    print("\n" + ("\n".join(wrong) or f"{len(kernels)} kernels, all within their budgets"))
    if markdown:
        write_section(markdown, lines)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
