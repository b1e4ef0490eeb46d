"""What INT8 costs in quality: perplexity and divergence of the demo models beside their own 16-bit form, and the gates.

    python tests/bench/quality.py --text book.txt --calibration other.txt --smollm "$(./bootstrap model)" --gemma "$(./bootstrap model gemma)"

16 bits: the file dequantised to BF16 with a KV cache of F16. Both sides run in one pass over the same windows (`inferd eval`).
Exit code 1 if a gate is missed: W8A8 written by `inferd quantize` with INT8 KV may raise the perplexity by 1.5 % on SmolLM2 and
2.5 % on Gemma 3 270M, weight-only INT8 by 0.3 %. The calibration text must not be the one that is measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = {
    "quantize, INT8 KV": (["--weights=auto", "--kv-dtype=int8"], {"SmolLM2": 1.5, "Gemma 3": 2.5}),
    "W8A8 made at load, INT8 KV": (["--weights=int8", "--kv-dtype=int8"], {}),
    "weight-only INT8": (["--weights=int8-weight-only", "--kv-dtype=f16"], {"SmolLM2": 0.3, "Gemma 3": 0.3}),
    "INT8 KV alone": (["--weights=bf16", "--kv-dtype=int8"], {}),
}


def quantised(o, path, folder):
    """The model as `inferd quantize` writes it."""
    out = os.path.join(folder, os.path.basename(path))
    if not os.path.isdir(out):
        subprocess.run([o.inferd, "quantize", path, out, "--calibration", o.calibration, *o.quantize], check=True, stdout=subprocess.DEVNULL)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--inferd", default=os.path.join(HERE, "..", "..", "build", "inferd"))
    parser.add_argument("--text", required=True)
    parser.add_argument("--calibration", help="text for inferd quantize")
    parser.add_argument("--quantize", nargs="*", default=[], metavar="OPTION", help="more options of inferd quantize, without their dashes: alpha=0.5")
    parser.add_argument("--smollm")
    parser.add_argument("--gemma")
    parser.add_argument("--tokens", type=int, default=32768, help="of the text; 0: all")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    o = parser.parse_args()
    o.quantize = ["--" + option for option in o.quantize]
    if not o.calibration and "quantize, INT8 KV" in o.kinds:
        parser.error("inferd quantize needs --calibration")
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(measure(o, folder))


def measure(o, folder):
    missed = False
    print("| model | what | tokens | perplexity, 16 bits | perplexity | rise | gate | KL mean / median / p99 / max | same top-1 |\n|---" + "|---" * 8 + "|")
    for name, path in (("SmolLM2", o.smollm), ("Gemma 3", o.gemma)):
        for kind in o.kinds if path else []:
            flags, gates = KINDS[kind]
            model = quantised(o, path, folder) if kind.startswith("quantize") else path
            run = [o.inferd, "eval", model, f"--against-model={path}", "--text", o.text, "--json", f"--context={o.context}", f"--max-tokens={o.tokens}", f"--threads={o.threads}",
                   "--against-weights=bf16", "--against-kv-dtype=f16", *flags]
            env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD")}
            done = subprocess.run(run, capture_output=True, text=True, env=env, check=False)
            if done.returncode != 0:
                print(f"| {name} | {kind} | {done.stderr.strip()} |")
                missed = missed or name in gates
                continue
            x = json.loads(done.stdout.splitlines()[-1])
            rise = 100 * (x["ratio"] - 1)
            gate = gates.get(name)
            missed = missed or (gate is not None and rise > gate)
            verdict = "-" if gate is None else f"{gate} % {'kept' if rise <= gate else 'MISSED'}"
            print(f"| {name} | {kind} | {x['tokens']} | {x['reference_perplexity']:.3f} | {x['perplexity']:.3f} | {rise:+.3f} % "
                  f"(+-{100 * x['ratio_error']:.3f}) | {verdict} | {x['kl_mean']:.5f} / {x['kl_median']:.5f} / {x['kl_p99']:.4f} / {x['kl_max']:.3f} | "
                  f"{100 * x['top1']:.2f} % |", flush=True)
    return missed


if __name__ == "__main__":
    main()
