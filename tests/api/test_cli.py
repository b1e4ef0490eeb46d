"""The commands of the binary as a user meets them: help, exit codes, inspect, tokenize, chat."""

import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest
from conftest import INFERD, MODEL, ROOT, SLOW, free_port
from faults import write_folder_model

COMMANDS = ["serve", "chat", "bench", "eval", "tokenize", "healthcheck", "doctor", "inspect", "quantize", "version"]
TEXTS = [
    "Hello, world!",
    "  two  spaces\tand a tab\n\nand lines\n",
    "naïve café – “quotes”",
    "今天天气怎么样？",
    "👩‍👩‍👧 flags 🇩🇪",
    "for (int i = 0; i < 1000; i++) { x[i] += 3.14159; }",
    "<|im_start|>system",
]


def run(*arguments, stdin="", env=None, timeout=60):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
    environment.update(env or {})
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = subprocess.run([INFERD, *arguments], input=data, capture_output=True, env=environment, timeout=timeout * SLOW)
    done.out = done.stdout.decode()
    done.err = done.stderr.decode()
    return done


def refused(done, code, *words):
    """It ended with this exit code and one sentence on standard error that has these words."""
    assert done.returncode == code, (done.returncode, done.err)
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("inferd: "), done.err
    for word in words:
        assert word in done.err, done.err


# --- help and the command line


def test_help_lists_every_command():
    for arguments in (["help"], ["--help"], ["-h"]):
        done = run(*arguments)
        assert done.returncode == 0 and done.err == ""
        for command in COMMANDS:
            assert re.search(rf"^  {command} ", done.out, re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command):
    done = run(command, "--help")
    assert done.returncode == 0 and done.err == ""
    assert done.out.startswith(f"Usage: inferd {command}")
    assert max(map(len, done.out.splitlines())) <= 110
    assert run("help", command).out == done.out
    assert run(command, "--bogus", "-h").out == done.out


def test_the_help_of_serve_has_every_setting_and_its_default():
    text = " ".join(run("serve", "--help").out.split())
    with open(os.path.join(ROOT, "conf", "inferd.conf"), encoding="utf-8") as f:
        settings = re.findall(r"^#(\w+) =(.*)$", f.read(), re.M)
    assert len(settings) > 30
    for name, default in settings:
        on = default.strip() == "true"  # a switch that is on is shown by what turns it off
        flag = ("--no-" if on else "--") + name.replace("_", "-")
        assert flag in text
        if default.strip() not in ("", "false", "true"):
            entry = re.search(re.escape(flag) + r" [A-Z].*?\(default ([^)]*)\)", text)
            assert entry and entry[1] == default.strip(), name


def test_no_command():
    done = run()
    assert done.returncode == 2 and done.out == "" and "Usage:" in done.err


def test_faults_of_the_command_line_exit_with_2():
    refused(run("sevre"), 2, "did you mean serve?")
    refused(run("frobnicate"), 2, '"frobnicate"', "inferd help")
    refused(run("help", "inspekt"), 2, "did you mean inspect?")
    refused(run("serve", "--prot", "1"), 2, "--prot", "did you mean --port?", "inferd serve --help")
    refused(run("serve", "--port", "x"), 2, '--port must be an integer from 0 to 65535, not "x"')
    refused(run("serve", "a", "b"), 2, '"b" is one too many')
    refused(run("serve", "a", "--model", "b"), 2, "twice")
    refused(run("chat", "--temperature", "3"), 2, "--temperature must be a number from 0 to 2")
    refused(run("chat", "--max-waiting", "3"), 2, "--max-waiting")  # the server's alone


def test_output_that_cannot_be_written_is_a_failure():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([INFERD, "version"], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert b"No space left" in done.stderr


def test_version():
    done = run("version", "--json")
    assert done.returncode == 0
    version = json.loads(done.out)
    assert run("--version").out == f"inferd {version['version']}\n"
    assert version["cpu_variant"] in ("generic", "avx2", "avx512", "vnni", "amx")
    assert {"libmicrohttpd", "libuv", "cjson", "gnutls", "oniguruma", "utf8proc"} <= set(version["libraries"])
    for number in version["libraries"].values():
        assert re.match(r"\d+\.\d+", number)
        assert number in run("version").out
    # it must say something even where the settings are broken
    assert run("version", env={"INFERD_PORT": "x"}).returncode == 0


# --- settings


def test_bad_settings_exit_with_78(tmp_path):
    conf = tmp_path / "inferd.conf"
    conf.write_text("port = 8081\nmax_wating = 3\n")
    refused(run("serve", MODEL, "--config", str(conf)), 78, f"{conf}:2:", "did you mean max_waiting?")
    refused(run("serve", MODEL, "--config", str(tmp_path / "none")), 78, "No such file")
    refused(run("serve", MODEL, env={"INFERD_PORT": "x"}), 78, "INFERD_PORT")
    for command in ("serve", "chat", "tokenize", "inspect"):
        refused(run(command), 78, "no model is named")
        refused(run(command, "--model", str(tmp_path / "none.gguf")), 78, "none.gguf: No such file")
    refused(run("serve", str(tmp_path / "none.gguf")), 78, "none.gguf", "No such file")
    refused(run("serve", MODEL, "--host", "0.0.0.0"), 78, "0.0.0.0", "INFERD_API_KEY", "--insecure")


def test_check_config_loads_no_model(tmp_path):
    fake = tmp_path / "model.gguf"
    fake.write_bytes(b"not a model")
    conf = tmp_path / "inferd.conf"
    conf.write_text(f"model = {fake}\nhost = 0.0.0.0\n")
    done = run("serve", "--config", str(conf), "--check-config", env={"INFERD_API_KEY": "k"})
    assert (done.returncode, done.err) == (0, "")
    refused(run("serve", "--config", str(conf), "--check-config"), 78, "0.0.0.0")
    quiet = ["--log-level", "error", "--port", str(free_port()), "--host", "127.0.0.1"]
    refused(run("serve", "--config", str(conf), *quiet), 78, "model.gguf")


def test_check_config_compiles_the_chosen_chat_template(tmp_path):
    broken, good = tmp_path / "broken.jinja", tmp_path / "good.jinja"
    broken.write_text("{% if %}")
    good.write_text("{{ messages[0].content }}")
    check = ("serve", MODEL, "--check-config", "--chat-template")
    for choice in (str(good), "chatml"):
        assert run(*check, choice).returncode == 0
    refused(run(*check, str(broken)), 78, "broken.jinja")
    refused(run(*check, "nofamily"), 78, "nofamily")


def test_tokenize_does_one_thing(tmp_path):
    refused(run("tokenize", "-m", MODEL, "--jsonl", "--decode", "1"), 2, "only one of")
    refused(run("tokenize", "-m", MODEL, "--chat", "x.json", "--jsonl"), 2, "only one of")
    refused(run("tokenize", "-m", MODEL, "--decode", ""), 2, "--decode wants")


def test_print_config_tells_who_won(tmp_path):
    conf = tmp_path / "inferd.conf"
    conf.write_text("port = 1\nmax_n = 2\nmax_waiting = 3\n")
    done = run("serve", "-c", str(conf), "--print-config", "--port", "5", env={"INFERD_MAX_N": "4", "INFERD_API_KEY": "s3cret"})
    assert done.returncode == 0
    assert re.findall(r"^(\w+) = (.*)$", done.out, re.M) == [("port", "5"), ("max_waiting", "3"), ("max_n", "4")]
    assert "s3cret" not in done.out


def test_a_misspelt_variable_is_mentioned():
    done = run("serve", "--print-config", env={"INFERD_MAX_WAITNG": "5"})
    assert done.returncode == 0
    assert "INFERD_MAX_WAITNG" in done.err and "max_waiting" in done.err


def test_what_does_not_fit_exits_with_3():
    p = run("serve", MODEL, "--port", str(free_port()), "--kv-tokens", str(10**9), "--log-level", "error")
    sentence, _, table = p.err.partition("\n")
    assert p.returncode == 3 and "the model does not fit" in sentence
    assert "What would help" in table or "does NOT fit" in table


def test_a_setting_that_the_model_cannot_have_exits_with_78(tmp_path):
    conf = tmp_path / "inferd.conf"
    conf.write_text("max_model_len = 1000000\n")
    refused(run("serve", MODEL, "--port", str(free_port()), "--config", str(conf), "--log-level", "error"), 78, "max_model_len is 1000000")
    refused(run("chat", MODEL, "--ctx", "1000000"), 78, "max_model_len is 1000000")


Q_PROJ = "model.layers.0.self_attn.q_proj."
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
W8A8 = {"quant_method": "w8a8_int8"}
SCALES = {".weight": ("I8", [32, 32], b"\1" * 1024), ".weight_scale": ("F32", [32, 1], b"\0\0\x80\x3f" * 32)}
GPTQ_PARTS = {".qweight": ("I32", [4, 32], b"\1" * 512), ".qzeros": ("I32", [1, 4], b"\x77" * 16), ".scales": ("F16", [1, 32], b"\0\x3c" * 32),
              ".g_idx": ("I32", [32], b"\0" * 128)}


@pytest.mark.parametrize("quantization, parts, words", [
    ({"quant_method": "mxfp4"}, {}, "quant_method mxfp4 is not supported"),
    ({**GPTQ, "bits": 77}, {}, "bits"),
    ({**GPTQ, "group_size": 0}, {}, "group_size is 0"),
    (GPTQ, {}, "q_proj.qweight is missing"),
    (GPTQ, {**GPTQ_PARTS, ".scales": ("F16", [32, 1], b"\0\x3c" * 32)}, "q_proj.scales has not the shape [1][32]"),
    (GPTQ, {**GPTQ_PARTS, ".g_idx": ("I32", [32], b"\1" * 128)}, "q_proj.g_idx has a group index that is not one of the 1 groups"),
    (GPTQ, {**GPTQ_PARTS, ".more": ("I32", [1], b"\1" * 4)}, "q_proj.more is not part of a llama model"),
    (GPTQ, {**GPTQ_PARTS, ".bias": ("F16", [32], b"\0\x3c" * 32)}, "q_proj.bias is not part of a llama model"),
    (W8A8, {".weight": SCALES[".weight"]}, "q_proj.weight_scale is missing"),
    (W8A8, {**SCALES, ".weight_scale": ("F32", [32, 1], b"\0\0\xc0\x7f" * 32)}, "q_proj.weight_scale has a scale that is not a finite"),
    (W8A8, {**SCALES, ".weight_scale": ("F32", [32, 1], b"\0\0\x80\xbf" * 32)}, "q_proj.weight_scale has a scale that is not a finite"),
    ({"quant_method": "fp8"}, {".weight": ("F8_E4M3", [32, 32], b"\x7f" * 1024), ".weight_scale": SCALES[".weight_scale"]},
     "q_proj.weight has an element that is not a finite number"),
    (None, SCALES, "type I8, which is not supported for weights that are not quantised"),
])
def test_quantised_models_that_make_no_sense_exit_with_78(tmp_path, quantization, parts, words):
    folder = write_folder_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    index = tmp_path / "model" / "model.safetensors.index.json"
    shard = tmp_path / "model" / json.loads(index.read_text())["weight_map"][Q_PROJ + "weight"]
    raw = shard.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header, data = json.loads(raw[8:8 + size]), raw[8 + size:]
    del header[Q_PROJ + "weight"]
    for name, (dtype, shape, content) in parts.items():
        header[Q_PROJ[:-1] + name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    places = {n: f for n, f in json.loads(index.read_text())["weight_map"].items() if n != Q_PROJ + "weight"}
    index.write_text(json.dumps({"weight_map": places}))
    head = json.dumps(header).encode()
    shard.write_bytes(struct.pack("<Q", len(head)) + head + data)
    refused(run("serve", folder, "--port", "0", "--log-level", "error"), 78, words)
    assert run("inspect", folder).returncode == 0


def test_a_port_that_is_taken_exits_with_1():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        refused(run("serve", MODEL, "--port", str(s.getsockname()[1]), "--log-level", "error"), 1, "in use")


# --- inspect


def test_inspect():
    done = run("inspect", MODEL)
    assert done.returncode == 0 and "general.architecture" in done.out and "token_embd.weight" in done.out
    assert json.loads(run("inspect", MODEL, "--json").out)
    assert run("inspect", env={"INFERD_MODEL": MODEL}).out == done.out


def test_inspect_of_broken_files(tmp_path):
    broken = tmp_path / "broken.gguf"
    with open(MODEL, "rb") as f:
        head = f.read(65536)
    cuts = [0, 1, 3, 4, 7, 8, 15, 16, 23, 24, 31, 40, 100, 1000, 65536]
    for cut in cuts:
        broken.write_bytes(head[:cut])
        refused(run("inspect", str(broken)), 78, "broken.gguf")
    huge = bytearray(head)
    huge[8:24] = b"\xff" * 16  # counts of tensors and metadata
    broken.write_bytes(huge)
    refused(run("inspect", str(broken)), 78, "broken.gguf")
    refused(run("inspect", str(tmp_path / "none")), 78, "No such file")


# --- tokenize


def tokenize(*arguments, **more):
    done = run("tokenize", "-m", MODEL, *arguments, **more)
    assert done.returncode == 0, done.err
    return done.out


@pytest.mark.parametrize("text", TEXTS)
def test_tokenize_and_back(text):
    ids = tokenize("--ids", "--", text).split()
    assert tokenize("--count", "-", stdin=text) == f"{len(ids)}\n"
    assert tokenize("--decode", ",".join(ids)) == text + "\n"
    assert tokenize("--decode", "-", stdin=" ".join(ids)) == text + "\n"
    answer = json.loads(tokenize("--json", "--", text))
    assert answer["count"] == len(answer["tokens"]) == len(ids)
    assert [str(i) for i in answer["ids"]] == ids
    table = tokenize("--", text).splitlines()
    assert [line.split()[0] for line in table[:-1]] == ids
    spans = answer["spans"]
    assert [line.split()[1] for line in table[:-1]] == [f"{start}..{end}" for start, end in spans]
    assert "".join(text.encode()[start:end].decode(errors="replace") for start, end in spans).count("�") <= 2 * len(ids)
    assert (spans[0][0] if spans else 0) == 0 and (spans[-1][1] if spans else 0) == len(text.encode())
    assert all(a[1] == b[0] for a, b in zip(spans, spans[1:]))  # byte-level pieces: nothing is left out


def test_special_tokens_in_text():
    with_specials = tokenize("--ids", "<|im_start|>").split()
    as_text = tokenize("--ids", "--no-parse-special", "<|im_start|>").split()
    assert len(with_specials) == 1 < len(as_text)
    assert "special" in tokenize("<|im_start|>")
    assert tokenize("--decode", with_specials[0], "--skip-special") == "\n"


def test_tokenize_lines():
    lines = [{"text": t, "parse_special": False} for t in TEXTS]
    done = run("tokenize", "-m", MODEL, "--jsonl", stdin="\n".join(map(json.dumps, lines)))
    assert done.returncode == 0
    answers = [json.loads(line) for line in done.out.splitlines()]
    for text, answer in zip(TEXTS, answers, strict=True):
        assert " ".join(map(str, answer["ids"])) + "\n" == tokenize("--ids", "--no-parse-special", "--", text)
    back = run("tokenize", "-m", MODEL, "--jsonl", stdin="\n".join(json.dumps({"ids": a["ids"]}) for a in answers))
    assert [json.loads(line)["text"] for line in back.out.splitlines()] == TEXTS


def test_tokenize_lines_go_on_after_a_bad_one():
    bad = ["{", "[]", '{"text": 5}', '{"ids": [-1]}', '{"ids": [1e9]}', '{"ids": ["1"]}', '{"messages": 3}', "{}"]
    done = run("tokenize", "-m", MODEL, "--jsonl", stdin="\n".join([*bad, '{"text": "ok"}']))
    assert done.returncode == 1 and f"{len(bad)} lines failed" in done.err
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [set(a) for a in answers[:-1]] == [{"error"}] * len(bad)
    assert answers[-1]["ids"] == answers[-1]["ids_special"] and len(answers[-1]["ids"]) >= 1


def test_spans_where_the_tokenizer_changes_the_text(tmp_path):
    """A space put in front, characters composed, white space swallowed, bytes that are no UTF-8."""
    vocabulary = {f"<0x{i:02X}>": i for i in range(256)} | {"▁": 256, "é": 257}
    model = tmp_path / "tokenizer.json"
    special = {"id": 258, "content": "<s>", "special": True, "rstrip": True, "lstrip": False, "single_word": False, "normalized": False}
    steps = [{"type": "NFC"}, {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    model.write_text(
        json.dumps(
            {
                "model": {"type": "BPE", "byte_fallback": True, "vocab": vocabulary, "merges": []},
                "normalizer": {"type": "Sequence", "normalizers": steps},
                "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}]},
                "added_tokens": [special],
            }
        )
    )

    def spans(data):
        done = run("tokenize", "-m", str(model), "--json", "-", stdin=data)
        assert done.returncode == 0, done.err
        answer = json.loads(done.out)
        return list(zip(answer["ids"], map(tuple, answer["spans"])))

    assert spans("ab") == [(256, (0, 0)), (97, (0, 1)), (98, (1, 2))]
    assert spans("e\u0301b") == [(256, (0, 3)), (257, (0, 3)), (98, (3, 4))]
    assert spans("<s>  a") == [(258, (0, 3)), (256, (3, 4)), (97, (5, 6))]
    assert spans(b"a\xffbc") == [(256, (0, 0)), (97, (0, 1)), (239, (1, 2)), (191, (1, 2)), (189, (1, 2)), (98, (2, 3)), (99, (3, 4))]
    assert spans("") == []


def test_tokenize_lines_keep_nul():
    lines = [{"text": "a\0b"}, {"messages": [{"role": "user", "content": "c\0d"}]}]
    done = run("tokenize", "-m", MODEL, "--jsonl", stdin="\n".join(map(json.dumps, lines)))
    text, chat = map(json.loads, done.out.splitlines())
    assert set(text) == {"ids", "ids_special"} and set(chat) == {"prompt", "ids"} and "c\0d" in chat["prompt"]
    back = run("tokenize", "-m", MODEL, "--jsonl", stdin=json.dumps({"ids": text["ids"]}))
    assert json.loads(back.out) == {"text": "a\0b"}


def test_render_lines(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% if not messages %}{{ raise_exception('nothing to say') }}{% endif %}{{ bos_token }}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{{ x }}|{{ tools is none }}{{ documents }}{{ add_generation_prompt }}{{ strftime_now('%Y') }}"
    )
    lines = [
        {"messages": [{"role": "user", "content": "é\0"}], "bos_token": "<s>", "kwargs": {"x": 1.0}, "now": "2025-01-15T12:34:56"},
        {"messages": [{"role": "u", "content": ["p"]}], "tools": [1], "documents": ["d"], "add_generation_prompt": False, "now": 0},
        {"messages": []},
        {"messages": [{"role": "u"}], "now": 0, "template": "t", "case": "c", "rendered": "", "flags": [], "js": "same"},
    ]
    done = run("tokenize", "--chat-template", str(template), "--render-jsonl", stdin="\n".join(map(json.dumps, lines)))
    assert done.returncode == 0, done.err
    assert [json.loads(line) for line in done.out.splitlines()] == [
        {"rendered": "<s>[user]é\x001.0|TrueNoneTrue2025"},
        {"rendered": "[u]['p']|False['d']False1970"},
        {"error": "nothing to say"},
        {"rendered": "[u]|TrueNoneTrue1970"},
    ]
    done = run("tokenize", "--chat-template", str(template), "--render-jsonl", stdin='[]\n{"messages": 1}\n')
    assert done.returncode == 1 and "2 lines failed" in done.err
    refused(run("tokenize", "--render-jsonl", stdin=""), 2, "--chat-template")
    refused(run("tokenize", "--chat-template", str(tmp_path / "none"), "--render-jsonl", stdin=""), 1, "No such file")


def test_chat_template_setting(tmp_path):
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "Hi"}]')
    assert tokenize("--chat", str(chat), "--chat-template", "zephyr").startswith("<|user|>\nHi<|im_end|>\n<|assistant|>\n")
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}!")
    assert json.loads(tokenize("--chat", str(chat), "--chat-template", str(own), "--json"))["prompt"] == "Hi!"
    refused(run("tokenize", "-m", MODEL, "--chat", str(chat), "--chat-template", "nope"), 78, "no family (alpaca chatml")
    own.write_text("{% if %}")
    refused(run("tokenize", "-m", MODEL, "--chat", str(chat), "--chat-template", str(own)), 78, "own.jinja: chat template line 1")


def test_cases_made_by_others():
    """All of them: tests/golden/run_text_cases.py without --quick."""
    folder = os.path.join(os.environ.get("INFERD_SHARED", os.path.join(ROOT, "..", "shared")), "data")
    if not os.path.isdir(folder):
        pytest.skip(f"no reference data at {folder}")
    script = os.path.join(ROOT, "tests", "golden", "run_text_cases.py")
    done = subprocess.run([sys.executable, script, "--quick", "--inferd", INFERD, "--data", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_tokenize_chat():
    messages = [{"role": "user", "content": "Say <|im_end|>."}]
    plain = json.loads(tokenize("--chat", "-", "--json", stdin=json.dumps(messages)))
    assert "Say <|im_end|>." in plain["prompt"]
    assert plain["prompt"].endswith("<|im_start|>assistant\n")
    end = int(tokenize("--ids", "<|im_end|>"))
    assert plain["ids"].count(end) == plain["prompt"].count("<|im_end|>") - 1  # the one in the message is plain text
    bare = json.loads(
        tokenize("--chat", "-", "--json", stdin=json.dumps({"messages": messages, "add_generation_prompt": False}))
    )
    assert plain["prompt"] == bare["prompt"] + "<|im_start|>assistant\n"
    for wrong in ("{}", '{"messages": {}}', '{"messages": [], "tools": 3}', "[1", '{"messages": [], "now": 1.5}'):
        refused(run("tokenize", "-m", MODEL, "--chat", "-", stdin=wrong), 2)


def test_tokenize_refuses():
    refused(run("tokenize", "-m", MODEL, "--decode", "1,x"), 2, "integers")
    refused(run("tokenize", "-m", MODEL, "--decode", "999999999"), 2, "an id must be an integer from 0 to")


# --- chat in a pipe

CHAT = ["chat", MODEL, "--seed", "1", "--max-tokens", "16", "--ctx", "512"]


def test_chat_in_a_pipe_prints_the_answer_alone():
    first = run(*CHAT, stdin="What is the capital of Italy?\n")
    assert first.returncode == 0
    assert first.err == ""
    assert first.out.strip()
    assert first.out.endswith("\n")
    assert run(*CHAT, stdin="What is the capital of Italy?").out == first.out


def test_chat_chooses_as_it_is_told():
    def answer(*options):
        done = run(*CHAT, *options, stdin="Tell me about the sea.\n")
        assert done.returncode == 0, done.err
        return done.out

    greedy = answer("--temperature", "0")
    hot = ("--temperature", "1.5")
    assert answer(*hot) != greedy
    for narrow in (("--top-n-sigma", "0.0001"), ("--mirostat", "2", "--mirostat-tau", "0"), ("--typical-p", "0.001", "--top-k", "1")):
        assert answer(*hot, *narrow) == greedy, narrow
    assert answer(*hot, "--samplers", "top_k", "--top-k", "1") == greedy
    assert answer(*hot, "--samplers", "temperature", "--top-k", "1") == answer(*hot, "--top-p", "1")
    refused(run("chat", MODEL, "--samplers", "warmth"), 2, "samplers")


def test_chat_keeps_the_conversation_and_drops_what_has_no_room():
    arguments = ["chat", MODEL, "--seed", "1", "--max-tokens", "8", "--ctx", "128"]
    question = "Please repeat after me: one two three four five six seven eight nine ten\n"
    done = run(*arguments, stdin=question * 4)  # 4 * 40 tokens do not fit into 128
    assert done.returncode == 0 and done.err == ""
    refused(run(*arguments, stdin="word " * 2000), 1, "the message has", "128")


# --- chat on a terminal


class Terminal:
    """inferd chat on a pseudo terminal."""

    def __init__(self, *arguments):
        try:
            self.pid, self.fd = pty.fork()
        except OSError as e:  # a root file system without devpts
            pytest.skip(f"no terminal can be made here: {e}")
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            for name in [n for n in os.environ if n.startswith("INFERD")]:
                del os.environ[name]
            os.execv(INFERD, [INFERD, *arguments])
        self.text = ""
        self.seen = 0
        self.code = None

    def read(self, seconds):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                return False
        return True

    def expect(self, pattern, seconds=60):
        """Wait for the pattern behind what was matched before."""
        end = time.monotonic() + seconds * SLOW
        while True:
            match = re.compile(pattern, re.S).search(self.text, self.seen)
            if match:
                self.seen = match.end()
                return match
            assert time.monotonic() < end and self.read(0.05), f"no {pattern!r} in {self.text[self.seen:]!r}"

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait(self, seconds=20):
        end = time.monotonic() + seconds * SLOW
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
        raise AssertionError(f"inferd chat still runs: {self.text[-500:]!r}")

    def leave(self):
        """Ctrl-D until it is taken: one that comes while the terminal changes its mode is lost."""
        for _ in range(10):
            self.type("\x04")
            try:
                return self.wait(seconds=2)
            except AssertionError:
                pass
        return self.wait()

    def close(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal():
    t = Terminal("chat", MODEL, "--seed", "1", "--temperature", "0", "--ctx", "2048")
    t.expect(r"/help.*\n> ")
    yield t
    t.close()


def test_chat_on_a_terminal(terminal):
    terminal.type("Count from one to five.\n")
    terminal.expect(r"\d+ tokens, [\d.]+ tokens/s.*\n> ")
    terminal.type("And now from six.\n")
    second = terminal.expect(r"prompt of (\d+) tokens.*\n> ")
    terminal.type("/reset\n")
    terminal.expect(r"new conversation.*\n> ")
    terminal.type("And now from six.\n")
    fresh = terminal.expect(r"prompt of (\d+) tokens.*\n> ")
    assert int(fresh[1]) < int(second[1])  # the second turn carried the first one
    terminal.type("/help\n")
    terminal.expect(r"/quit.*\n> ")
    terminal.type("/nonsense\n")
    terminal.expect(r"no such command.*\n> ")
    terminal.type("/quit\n")
    assert terminal.wait() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal):
    for _ in range(2):
        terminal.type("Write a very long story about a ship, with many chapters.\n")
        terminal.expect(r"\n(?![>W])[^\n]*\w+ \w+ \w+")  # the answer streams; not the echo of the line, which begins so
        terminal.type("\x03")
        terminal.expect(r"stopped\).*\n> ", seconds=10)
    assert terminal.leave() == 0


def test_ctrl_c_at_the_prompt_twice_leaves(terminal):
    terminal.type("half a li")
    terminal.expect("half a li")
    terminal.type("\x03")
    terminal.expect(r"Ctrl-C again leaves.*\n> ")
    terminal.type("/help\n")  # the half line is forgotten, and so is the first Ctrl-C
    terminal.expect(r"/quit.*\n> ")
    terminal.type("\x03")
    terminal.expect(r"Ctrl-C again leaves.*\n> ")
    terminal.type("\x03")
    assert terminal.wait() == 0


def test_a_message_that_is_too_long_is_no_end():
    terminal = Terminal("chat", MODEL, "--ctx", "512")
    terminal.expect(r"/help.*\n> ")
    terminal.type("word " * 700 + "\n")  # a terminal cuts lines at 4096 bytes
    terminal.expect(r"inferd: the message has \d+ tokens, and the context 512.*\n> ")
    terminal.type("/quit\n")
    assert terminal.wait() == 0
    terminal.close()
