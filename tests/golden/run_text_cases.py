#!/usr/bin/env python3
"""Every case of the shared data about texts and chats, through the command line of inferd; counts for each tokenizer and
each chat template.

    python3 tests/golden/run_text_cases.py [--inferd build/inferd] [--data ../shared/data] [--quick] [-v]

What is compared, and where: the tokenizers' encode.jsonl, decode.jsonl, chat.jsonl and sentencepiece.jsonl and the GGUF
vocabularies' NAME.jsonl and .inp/.out by `inferd tokenize --model PATH --jsonl`; chat/rendered, chat/e2e.jsonl and
chat/jinja by `inferd tokenize --chat-template FILE --render-jsonl`; the conversations behind chat.jsonl by
`--model FOLDER --chat-template FILE --jsonl`. Exit code 1 if a case differs. --quick takes every eighth case of each.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARIES = {
    "ggml-vocab-llama-spm": ("llama-spm", "ggml-vocab-llama-spm"),
    "ggml-vocab-phi-3": ("phi-3", "ggml-vocab-phi-3"),
    "ggml-vocab-gpt-2": ("gpt-2", "ggml-vocab-gpt-2"),
    "ggml-vocab-starcoder": ("starcoder", "ggml-vocab-starcoder"),
    "ggml-vocab-deepseek-llm": ("deepseek-llm", "ggml-vocab-deepseek-llm"),
    "llama-3.1": ("llama-3.1", "ggml-vocab-llama-bpe"),
    "qwen3": ("qwen3", "ggml-vocab-qwen2"),
}


class Run:
    def __init__(self, inferd, data, quick, verbose):
        self.inferd, self.data, self.step, self.verbose = inferd, data, 8 if quick else 1, verbose
        self.wrong = 0

    def rows(self, path):
        with open(self.data / path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines][:: self.step]

    def answers(self, arguments, inputs):
        """The answer of inferd to each line. Its exit code says whether all were well-formed."""
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in inputs)
        done = subprocess.run([self.inferd, "tokenize", *map(str, arguments)], input=text.encode(), capture_output=True)
        lines = done.stdout.decode().split("\n")[:-1]
        if done.returncode != 0 or len(lines) != len(inputs):
            raise SystemExit(f"inferd tokenize {arguments}: exit code {done.returncode}: {done.stderr.decode()}")
        return [json.loads(line) for line in lines]

    def report(self, what, results):
        """results: (name of the case, got, wanted); one line of counts."""
        bad = [(name, got, want) for name, got, want in results if got != want]
        self.wrong += len(bad)
        print(f"{what:58} {len(results) - len(bad):5} of {len(results)}")
        for name, got, want in bad[: len(bad) if self.verbose else 3]:
            print(f"    {name}: got {str(got)[:300]}\n    wanted {str(want)[:300]}")

    # --- tokenizers

    def tokenizer(self, name):
        for model in (self.data / "tokenizers" / name, self.data / "tokenizers" / name / "tokenizer.json"):
            shown = f"{name} ({'folder' if model.is_dir() else 'tokenizer.json'})"
            rows = self.rows(f"tokenizers/{name}/encode.jsonl")
            answers = self.answers(["--model", model, "--jsonl"], [{"text": row["text"]} for row in rows])
            self.report(f"{shown}: ids", [(r["id"], a["ids"], r["ids"]) for r, a in zip(rows, answers)])
            self.report(f"{shown}: ids_special", [(r["id"], a["ids_special"], r["ids_special"]) for r, a in zip(rows, answers)])
            self.decodings(f"{shown}: encode.jsonl decoded", model, rows)
            self.decodings(f"{shown}: decode.jsonl decoded", model, self.rows(f"tokenizers/{name}/decode.jsonl"))
            rows = self.rows(f"tokenizers/{name}/chat.jsonl")
            answers = self.answers(["--model", model, "--jsonl"], [{"text": row["rendered"]} for row in rows])
            self.report(f"{shown}: chat.jsonl as text", [(r["case"], a["ids"], r["ids"]) for r, a in zip(rows, answers)])

    def decodings(self, what, model, rows):
        for key, skip in (("decoded", False), ("decoded_skip_special", True)):
            answers = self.answers(["--model", model, "--jsonl"], [{"ids": r["ids"], "skip_special": skip} for r in rows])
            self.report(what + (" skipping specials" if skip else ""), [(r["id"], a["text"], r[key]) for r, a in zip(rows, answers)])

    def sentencepiece(self):
        rows = self.rows("tokenizers/llama-2/sentencepiece.jsonl")
        answers = self.answers(
            ["--model", self.data / "tokenizers/llama-2", "--no-parse-special", "--jsonl"], [{"text": row["text"]} for row in rows]
        )
        self.report("llama-2: sentencepiece.jsonl", [(r["id"], a["ids"], r["ids"]) for r, a in zip(rows, answers)])

    def gguf(self, name, cases, vectors):
        model = self.data / "gguf" / f"{name}.gguf"
        rows = self.rows(f"gguf/{cases}.jsonl")
        texts = [{"text": row["text"]} for row in rows]
        answers = self.answers(["--model", model, "--jsonl"], texts)
        self.report(f"{name}.gguf: ids_parse_special", [(r["id"], a["ids"], r["ids_parse_special"]) for r, a in zip(rows, answers)])
        answers = self.answers(["--model", model, "--no-parse-special", "--jsonl"], texts)
        self.report(f"{name}.gguf: ids", [(r["id"], a["ids"], r["ids"]) for r, a in zip(rows, answers)])
        answers = self.answers(["--model", model, "--jsonl"], [{"ids": row["ids_parse_special"]} for row in rows])
        self.report(f"{name}.gguf: decoded", [(r["id"], a["text"], r["decoded"]) for r, a in zip(rows, answers)])
        inputs = (self.data / f"gguf/{vectors}.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")[:-1]
        wanted = [[int(i) for i in line.split()] for line in (self.data / f"gguf/{vectors}.gguf.out").read_text().split("\n")[:-1]]
        answers = self.answers(["--model", model, "--no-parse-special", "--jsonl"], [{"text": text} for text in inputs])
        self.report(f"{name}.gguf: vectors", [(i, a["ids"], want) for i, (a, want) in enumerate(zip(answers, wanted, strict=True))])

    # --- chats

    def compare_rendered(self, what, pairs):
        """pairs: row with rendered or error, and inferd's answer. Python's own errors need only be errors."""
        results = []
        for row, answer in pairs:
            name = row.get("case") or row["name"]
            if "rendered" in row:
                results.append((name, answer.get("rendered", answer), row["rendered"]))
            elif row["error"]["kind"] == "raise_exception":
                results.append((name, answer.get("error", answer), row["error"]["message"]))
            else:
                results.append((name, "error" in answer, True))
        self.report(what, results)

    def template(self, path):
        rows = self.rows(f"chat/rendered/{path.stem}.jsonl")
        self.compare_rendered(
            f"chat template {path.stem}", list(zip(rows, self.answers(["--chat-template", path, "--render-jsonl"], rows)))
        )

    def small_templates(self, file, template_key, context_key):
        pairs = []
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "template.jinja")
            for row in self.rows(file):
                path.write_bytes(row[template_key].encode())
                line = {"kwargs": row[context_key], "now": "2025-01-15T12:34:56"}
                try:
                    pairs.append((row, self.answers(["--chat-template", path, "--render-jsonl"], [line])[0]))
                except SystemExit as wrong:
                    pairs.append((row, {"failed": str(wrong)}))
        self.compare_rendered(file, pairs)

    def prompts(self, name):
        """Messages to ids by the model's tokenizer. special_lookalike is not for messages (see the README there)."""
        results, cases = [], {}
        for row in self.rows(f"tokenizers/{name}/chat.jsonl"):
            if row["case"] != "special_lookalike":
                cases.setdefault(row["template"], []).append(row)
        with tempfile.TemporaryDirectory() as folder:
            for template, rows in cases.items():
                with open(self.data / f"chat/rendered/{template}.jsonl", encoding="utf-8") as lines:
                    conversations = {c["case"]: c for c in map(json.loads, lines)}
                # the conversations' own bos_token and eos_token, which belong to the template and not to the tokenizer
                source = (self.data / f"chat/templates/{template}.jinja").read_text(encoding="utf-8")
                first = conversations[rows[0]["case"]]
                head = "".join(
                    f"{{%- set {key} = {json.dumps(first[key])} -%}}" for key in ("bos_token", "eos_token") if first[key]
                )
                path = pathlib.Path(folder, "template.jinja")
                path.write_bytes((head + source).encode())
                arguments = ["--model", self.data / "tokenizers" / name, "--chat-template", path, "--jsonl"]
                answers = self.answers(arguments, [conversations[row["case"]] for row in rows])
                results += [(f"{template} {r['case']}", a.get("ids"), r["ids"]) for r, a in zip(rows, answers)]
        self.report(f"{name}: messages to ids", results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inferd", default=ROOT / "build/inferd")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    run = Run(options.inferd, options.data.resolve(), options.quick, options.verbose)
    for name in ("llama-2", "phi-3-mini", "llama-3.1", "qwen3"):
        run.tokenizer(name)
        run.prompts(name)
    run.sentencepiece()
    for name, (cases, vectors) in VOCABULARIES.items():
        run.gguf(name, cases, vectors)
    for path in sorted((options.data / "chat/templates").glob("*.jinja")):
        run.template(path)
    run.small_templates("chat/e2e.jsonl", "chat_template", "data")
    run.small_templates("chat/jinja/expressions.jsonl", "template", "context")
    run.small_templates("chat/jinja/more.jsonl", "template", "context")
    print("all agree" if run.wrong == 0 else f"{run.wrong} differ")
    return run.wrong > 0


if __name__ == "__main__":
    sys.exit(main())
