#!/usr/bin/env python3
"""One model over 1 to 64 GPUs, on paper: what `inferd plan` computes, as the tables of BENCHMARKS.md. Nothing here is measured.

    tests/bench/scaling_model.py [build/inferd]
"""

import json
import subprocess
import sys

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/inferd"


def plan(model, card, n, batch, tp, pp=1, weights="int8", kv="int8", ctx=2048):
    out = subprocess.run([PROGRAM, "plan", model, "--gpu", f"{card}x{n}", "--tp", str(tp), "--pp", str(pp), "--batch", str(batch), "--weights", weights,
                          "--kv", kv, "--ctx", str(ctx), "--json"], capture_output=True, text=True)
    assert out.returncode in (0, 3), out.stderr
    return json.loads(out.stdout)


def table(model, card):
    print(f"| GPUs | tensor × pipeline | weights a GPU | KV for | 1 stream, a token | of it told | 64 streams | of it told | idle | idle, 4 steps a stage |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for n in (1, 2, 4, 8, 16, 32, 64):
        tp, pp = min(n, 8), max(1, n // 8)
        one, many = plan(model, card, n, 1, tp, pp), plan(model, card, n, 64, tp, pp)
        weights = max(r["weights_bytes"] for r in one["ranks"]) / 2**30
        if not one["fits"]:
            print(f"| {n} | {tp} × {pp} | {weights:.1f} GiB | does not fit | | | | | | |")
            continue
        e, m = one["estimate"], many["estimate"]
        told = [x["token_communication_seconds"] / x["token_seconds"][1] for x in (e, m)]
        idle, flight = 1 - 1 / pp, (pp - 1) / (4 * pp + pp - 1)
        many_text = f"{m['tokens_per_second'][0]:.0f} to {m['tokens_per_second'][1]:.0f} tokens/s" if many["fits"] else "does not fit"
        print(f"| {n} | {tp} × {pp} | {weights:.1f} GiB | {one['max_tokens']} tokens | {1e3 * e['token_seconds'][0]:.1f} to {1e3 * e['token_seconds'][1]:.1f} ms | "
              f"{100 * told[0]:.0f} % | {many_text} | {100 * told[1]:.0f} % | {100 * idle:.0f} % | {100 * flight:.0f} % |")
    print()


def check(what, figures, low, high):
    """figures: one that was published, or the two ends of a range."""
    apart = [f / (low if f < low else high) for f in figures if not low <= f <= high]
    place = "within" if not apart else "; ".join(f"{a:.2f} of the nearer end" for a in apart)
    print(f"| {what} | {' to '.join(f'{f:.3g}' for f in figures)} | {low:.3g} to {high:.3g} | {place} |")


def main():
    for card in ("a100-80g", "h100-80g"):
        for model in ("llama-2-7b", "llama-3.1-70b", "llama-3.1-405b"):
            print(f"{model}, INT8 weights and KV, contexts of 2,048, {card}:\n")
            table(model, card)
    print("| published | figure | the model | |")
    print("|---|---|---|---|")
    for what, figure, args in (
        # published as shares of the ceiling, 154 tokens/s on A100 and 253 on H100
        ("7B BF16, A100, 1 stream, tokens/s (66 to 68 % of the bandwidth: LMDeploy, gpt-fast)", (0.66 * 154, 0.68 * 154), ("llama-2-7b", "a100-80g", 1, 1, 1, 1, "bf16", "f16")),
        ("7B BF16, H100, 1 stream, tokens/s (72 to 78 % of it)", (0.72 * 253, 0.78 * 253), ("llama-2-7b", "h100-80g", 1, 1, 1, 1, "bf16", "f16")),
        ("7B INT8 weights, A100, 1 stream, tokens/s (gpt-fast)", (156,), ("llama-2-7b", "a100-80g", 1, 1, 1, 1, "int8", "f16")),
        ("70B BF16, 4 A100, 1 stream, tokens/s (gpt-fast)", (38,), ("llama-2-70b", "a100-80g", 4, 1, 4, 1, "bf16", "f16")),
    ):
        t = plan(*args)["estimate"]["tokens_per_second"]
        check(what, figure, t[0], t[1])
    for card, name in (("a100-80g-pcie", "PCIe"), ("a100-80g", "NVLink")):
        four, eight = (plan("llama-2-70b", card, n, 32, n, 1, "bf16", "f16")["estimate"]["tokens_per_second"] for n in (4, 8))
        ratios = [eight[i] / four[i] for i in range(2)]
        if name == "PCIe":
            check("70B BF16, A100 PCIe, 8 cards beside 4 (TensorRT-LLM, 960 / 987)", (960 / 987,), min(ratios), max(ratios))
        else:
            print(f"| the same over NVLink | not published | {min(ratios):.3g} to {max(ratios):.3g} | |")


if __name__ == "__main__":
    main()
