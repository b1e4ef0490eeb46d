"""Manual pages and completion: written from the tables, so whatever --help knows is in them."""

import re
import shutil
import subprocess

import pytest
from conftest import INFERD

PAGES = {"inferd.1": "--man", "inferd.conf.5": "--man-conf"}


def output(*arguments):
    return subprocess.run([INFERD, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_clean(page, tmp_path):
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    file = tmp_path / page
    file.write_text(output("help", PAGES[page]))
    for device in ("utf8", "ascii"):
        run = subprocess.run(["groff", "-man", "-ww", f"-T{device}", "-z", file], capture_output=True, text=True, check=True)
        assert run.stderr == ""
    assert not re.search(r"[^\x00-\x7f]", file.read_text())


def plain(page):
    text = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", "-rLL=500n"], input=output("help", PAGES[page]), capture_output=True,
                          text=True, check=True).stdout
    return text


def test_every_setting_is_in_the_page():
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    page = plain("inferd.conf.5")
    names = re.findall(r"^#?(\w+) =", output("serve", "--print-config"), re.MULTILINE)
    assert len(names) > 40
    assert names == [n for n in re.findall(r"^ {7}(\w+)(?= |$)", page, re.MULTILINE) if n in names]


def test_every_command_and_option_is_in_the_page():
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    page = plain("inferd.1")
    commands = re.findall(r"^  (\w+) +\S", output("help").partition("\n\n")[2].partition("Examples:")[0], re.MULTILINE)
    assert {"serve", "chat", "quantize"} <= set(commands)
    commands.remove("help")
    parts = dict(zip(commands, re.split(r"^ {3}inferd \w+$", page, flags=re.MULTILINE)[1:], strict=True))
    for command in commands:
        if "every setting of" in " ".join(parts[command].split()):
            continue  # they are in the other page
        for flag in re.findall(r"^  (?:-\w, )?(--[\w-]+)", output(command, "--help"), re.MULTILINE):
            assert flag in parts[command], (command, flag)
    for code in ("0", "1", "2", "3", "4", "78"):
        assert re.search(rf"^ {{7}}{code} ", page, re.MULTILINE)


def complete(script, *words):
    """What bash offers for the last word, cut as bash cuts them."""
    quoted = " ".join(f"'{w}'" for w in words)
    code = f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _inferd; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    run = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=script.parent, check=True)
    assert run.stderr == ""
    return set(run.stdout.split())


def test_completion(tmp_path):
    script = tmp_path / "inferd"
    script.write_text(output("help", "--bash-completion"))
    (tmp_path / "folder").mkdir()
    assert {"serve", "chat", "help", "--version"} <= complete(script, "inferd", "")
    assert complete(script, "inferd", "quan") == {"quantize"}
    names = re.findall(r"^#?(\w+) =", output("serve", "--print-config"), re.MULTILINE)
    offered = complete(script, "inferd", "serve", "--")
    assert {"--check-config", "--help", "--config"} <= offered
    for name in names:
        flag = name.replace("_", "-")
        assert f"--{flag}" in offered or f"--no-{flag}" in offered, name
    assert complete(script, "inferd", "serve", "--log-level", "") == {"error", "warn", "info", "debug"}
    assert complete(script, "inferd", "serve", "--log-level", "=", "in") == {"info"}
    assert complete(script, "inferd", "serve", "--kv-dtype", "=") == {"f16", "bf16", "int8"}
    assert complete(script, "inferd", "serve", "--kv", "b") == {"bf16"}
    assert complete(script, "inferd", "serve", "--config", "") == {"inferd", "folder"}
    assert complete(script, "inferd", "serve", "--cache-folder", "") == {"folder"}
    assert complete(script, "inferd", "serve", "--port", "") == set()
    assert complete(script, "inferd", "serve", "inf") == {"inferd"}
    assert complete(script, "inferd", "version", "--j") == {"--json"}
    assert complete(script, "inferd", "help", "ser") == {"serve"}
