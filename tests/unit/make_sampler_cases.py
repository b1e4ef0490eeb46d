#!/usr/bin/env python3
"""Write tests/unit/data/sampler_cases.json: logits, settings, and the probabilities that two other implementations come to:
the samplers of llama.cpp (PyPI package `llama-cpp-python`, which has a C interface to each of them) and the logits
processors of `transformers`. llama.cpp's DRY wants a vocabulary, of any GGUF model of more than 100 tokens:

    pip install llama-cpp-python transformers torch numpy
    python3 tests/unit/make_sampler_cases.py MODEL.gguf > tests/unit/data/sampler_cases.json

A case: {"name", "logits": index, "settings": fields of a request, "tokens" (all generated), "probabilities": {id: p}};
for mirostat also "mu", the state before the choice. Where llama.cpp and inferd differ by design, the cases keep away:
no n_sigma behind another filter with masked tokens left, no min_keep with it, frequency over the prompt.
"""
import ctypes
import json
import math
import sys

import llama_cpp as llama
import numpy as np
import torch
import transformers

N = 100
LLAMA_ORDER = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
OUR_ORDER = "penalties;dry;temperature;top_n_sigma;min_p;top_k;typ_p;top_p;xtc"


def families():
    rng = np.random.default_rng(20)
    usual = rng.normal(0, 3, N)
    peaked = rng.normal(-4, 2, N)
    peaked[17] = 9
    flat = rng.normal(1, 0.2, N)
    zipf = -1.27 * np.log(np.arange(1, N + 1)) + 5
    rng.shuffle(zipf)
    far = rng.normal(0, 30, N)
    return [f.astype(np.float32) for f in (usual, peaked, flat, zipf, far)]


class Array:
    """Candidates as llama.cpp has them."""

    def __init__(self, logits):
        self.data = (llama.llama_token_data * N)()
        for i, z in enumerate(logits):
            self.data[i].id, self.data[i].logit, self.data[i].p = i, float(z), 0.0
        self.array = llama.llama_token_data_array(data=self.data, size=N, selected=-1, sorted=False)

    def apply(self, sampler, tokens=()):
        for t in tokens:
            llama.llama_sampler_accept(sampler, t)
        llama.llama_sampler_apply(sampler, ctypes.byref(self.array))

    def probabilities(self):
        left = [(self.array.data[i].id, self.array.data[i].logit) for i in range(self.array.size)]
        return softmax(left)


def softmax(left):
    left = [(i, float(z)) for i, z in left if z > -math.inf]
    best = max(z for _, z in left)
    total = sum(math.exp(z - best) for _, z in left)
    return {str(i): math.exp(z - best) / total for i, z in sorted(left)}


def stage(name, s, vocab):
    keep = s.get("min_keep", 1)
    if name == "penalties":
        penalties = s.get("repetition_penalty", 1), s.get("frequency_penalty", 0), s.get("presence_penalty", 0)
        return llama.llama_sampler_init_penalties(N, s.get("repeat_last_n", 4096), *penalties) if penalties != (1, 0, 0) else None
    if name == "dry" and s.get("dry_multiplier"):
        last = s.get("dry_penalty_last_n", 4096)
        return llama.llama_sampler_init_dry(vocab, s["dry_multiplier"], s.get("dry_base", 1.75), s.get("dry_allowed_length", 2), last, None, 0)
    if name == "top_n_sigma" and "top_n_sigma" in s:
        return llama.llama_sampler_init_top_n_sigma(s["top_n_sigma"])
    if name == "top_k" and "top_k" in s:
        return llama.llama_sampler_init_top_k(s["top_k"])
    if name == "typ_p" and "typical_p" in s:
        return llama.llama_sampler_init_typical(s["typical_p"], keep)
    if name == "top_p" and "top_p" in s:
        return llama.llama_sampler_init_top_p(s["top_p"], keep)
    if name == "min_p" and "min_p" in s:
        return llama.llama_sampler_init_min_p(s["min_p"], keep)
    if name == "xtc" and "xtc_probability" in s:
        return llama.llama_sampler_init_xtc(s["xtc_probability"], s.get("xtc_threshold", 0.1), keep, 1)
    if name == "temperature" and s.get("dynatemp_range"):
        return llama.llama_sampler_init_temp_ext(s.get("temperature", 1), s["dynatemp_range"], s.get("dynatemp_exponent", 1))
    if name == "temperature":
        return llama.llama_sampler_init_temp(s.get("temperature", 1))
    return None


def by_llama(logits, s, tokens, vocab):
    a = Array(logits)
    for name in s["samplers"].split(";"):
        sampler = stage(name, s, vocab)
        if sampler:
            a.apply(sampler, tokens)
            # what a stage took out is out: llama.cpp's top_n_sigma leaves it as -infinity
            left = [(a.data[i].id, a.data[i].logit) for i in range(a.array.size) if a.data[i].logit > -math.inf]
            for i, (token, z) in enumerate(left):
                a.data[i].id, a.data[i].logit, a.data[i].p = token, z, 0
            a.array.size = len(left)
            a.array.sorted = False
            llama.llama_sampler_free(sampler)
    return a.probabilities()


def by_transformers(logits, s, tokens):
    p = transformers.generation.logits_process
    ids, z = torch.tensor([list(tokens)], dtype=torch.long), torch.tensor(np.array([logits]))
    keep = s.get("min_keep", 1)
    made = {
        "penalties": lambda: p.RepetitionPenaltyLogitsProcessor(s["repetition_penalty"]) if "repetition_penalty" in s else None,
        "temperature": lambda: p.TemperatureLogitsWarper(s["temperature"]) if "temperature" in s else None,
        "min_p": lambda: p.MinPLogitsWarper(s["min_p"], min_tokens_to_keep=keep) if "min_p" in s else None,
        "top_k": lambda: p.TopKLogitsWarper(s["top_k"]) if "top_k" in s else None,
        "typ_p": lambda: p.TypicalLogitsWarper(s["typical_p"], min_tokens_to_keep=keep) if "typical_p" in s else None,
        "top_p": lambda: p.TopPLogitsWarper(s["top_p"], min_tokens_to_keep=keep) if "top_p" in s else None,
    }
    for name in s["samplers"].split(";"):
        processor = made[name]() if name in made else None
        z = processor(ids, z) if processor else z
    return softmax(enumerate(z[0].tolist()))


def agree(a, b=None):
    return b is None or a.keys() == b.keys() and all(abs(a[i] - b[i]) < 1e-4 for i in a)


def settings():
    """What is asked for, and which of the two can answer."""
    both, llama_only = ("llama.cpp", "transformers"), ("llama.cpp",)
    for t in (0.3, 0.7, 1.6):
        yield {"temperature": t}, both
    for p in (0.1, 0.5, 0.9, 0.99):
        yield {"top_p": p}, both
        yield {"typical_p": p}, both
        yield {"temperature": 1.5, "typical_p": p}, both
        yield {"temperature": 0.6, "top_p": p, "top_k": 20}, both
    for p in (0.01, 0.1, 0.5):
        yield {"min_p": p}, both
        yield {"min_p": p, "min_keep": 7}, both
        yield {"temperature": 1.8, "min_p": p, "top_p": 0.8, "typical_p": 0.9}, both
    for k in (1, 5, 40):
        yield {"top_k": k}, both
    yield {"top_p": 0.2, "min_keep": 9}, both
    yield {"typical_p": 0.2, "min_keep": 9}, both
    yield {"repetition_penalty": 1.3}, both
    yield {"repetition_penalty": 0.8, "temperature": 0.5, "top_p": 0.9}, both
    for n in (0.5, 1.0, 2.0):
        yield {"top_n_sigma": n}, llama_only
        yield {"top_n_sigma": n, "temperature": 1.7, "top_p": 0.9}, llama_only
    for t in (0.01, 0.05, 0.1, 0.3, 0.5):
        yield {"xtc_probability": 1.0, "xtc_threshold": t}, llama_only
        yield {"xtc_probability": 1.0, "xtc_threshold": t, "min_p": 0.05, "temperature": 1.3}, llama_only
    yield {"xtc_probability": 1.0, "xtc_threshold": 0.01, "min_keep": 95}, llama_only
    for spread, exponent in ((0.5, 1), (0.8, 0.5), (1.5, 2), (0.3, 0)):
        yield {"dynatemp_range": spread, "dynatemp_exponent": exponent}, llama_only
        yield {"temperature": 0.8, "dynatemp_range": spread, "dynatemp_exponent": exponent, "top_k": 15}, llama_only
    yield {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.7}, llama_only
    yield {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": -0.7, "repeat_last_n": 9}, llama_only
    for allowed, base, last in ((2, 1.75, 4096), (1, 1.2, 4096), (3, 2.0, 4096), (2, 1.75, 14), (4, 3.0, 25)):
        yield {"dry_multiplier": 0.8, "dry_allowed_length": allowed, "dry_base": base, "dry_penalty_last_n": last}, llama_only
    yield {"dry_multiplier": 0.5, "top_k": 30, "temperature": 0.9, "xtc_probability": 1.0, "top_p": 0.95}, llama_only


TOKENS = [5, 6, 7, 8, 5, 6, 7, 9, 17, 17, 17, 5, 6, 7, 8, 30, 31, 5, 6, 7, 8, 5, 6, 7]
OTHER_ORDERS = (
    ("temperature;top_p;penalties", {"temperature": 1.4, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": -1.5}),
    ("top_k;dry;temperature", {"temperature": 0.7, "top_k": 30, "dry_multiplier": 0.8}),
    ("min_p;temperature;top_p", {"temperature": 1.9, "top_p": 0.8, "min_p": 0.02}),
    ("top_p;top_k", {"temperature": 0.2, "top_p": 0.7, "top_k": 40}),
    ("xtc;top_p;typ_p", {"xtc_probability": 1.0, "xtc_threshold": 0.05, "top_p": 0.8, "typical_p": 0.7}),
    ("top_k;temperature", {"dynatemp_range": 0.7, "top_k": 10}),
    ("typ_p;top_n_sigma", {"typical_p": 0.95, "top_n_sigma": 1.0}),
)


def cases(vocab):
    all_logits = families()
    orders = lambda s: (OUR_ORDER, LLAMA_ORDER) if len(s) > 1 else (OUR_ORDER,)  # noqa: E731
    asked = [(dict(s, samplers=order), who) for s, who in settings() for order in orders(s)]
    asked += [(dict(s, samplers=order), ("llama.cpp",)) for order, s in OTHER_ORDERS]
    for s, who in asked:
        for f, logits in enumerate(all_logits):
            if "typical_p" in s and f == 4 and len(who) == 1:
                continue  # see below
            name = " ".join(f"{k}={v}" for k, v in s.items()) + f" of logits {f}"
            answers = {"llama.cpp": by_llama(logits, s, TOKENS, vocab)}
            if "transformers" in who:
                answers["transformers"] = by_transformers(logits, s, TOKENS)
            # they disagree where a probability is 0 in llama.cpp's floats: its entropy is 0 * log(0) then
            w = who[-1] if agree(*answers.values()) or "typical_p" in s and f == 4 else sys.exit(f"they disagree: {name}")
            yield {"name": name, "by": w, "logits": f, "settings": s, "tokens": TOKENS, "probabilities": answers[w]}


def mirostat_cases():
    """Some steps each: what is kept follows from a mu that llama.cpp made itself."""
    for version in (1, 2):
        for tau, eta in ((5.0, 0.1), (2.0, 0.5), (1.0, 1.0)):
            for f, logits in enumerate(families()):
                if version == 1 and f in (2, 4):
                    continue  # so flat that k is beyond an int, or p is 0: llama.cpp's conversion to int makes 1 of both
                s = {"mirostat": version, "mirostat_tau": tau, "mirostat_eta": eta, "temperature": 0.9, "samplers": "temperature"}
                sampler = (
                    llama.llama_sampler_init_mirostat(N, 7, tau, eta, 100) if version == 1 else llama.llama_sampler_init_mirostat_v2(7, tau, eta)
                )
                mu = 2 * tau
                for step in range(6):
                    a = Array(logits / np.float32(0.9))
                    a.apply(sampler)
                    kept = {str(a.data[i].id): a.data[i].p for i in range(a.array.size)}
                    yield {"name": f"mirostat {version} tau {tau} eta {eta} of logits {f}, step {step}", "by": "llama.cpp", "logits": f,
                           "settings": s, "tokens": [], "mu": mu, "probabilities": kept}
                    mu -= eta * (-math.log2(a.data[a.array.selected].p) - tau)
                llama.llama_sampler_free(sampler)


def main():
    params = llama.llama_model_default_params()
    params.vocab_only = True
    model = llama.llama_model_load_from_file(sys.argv[1].encode(), params)
    vocab = llama.llama_model_get_vocab(model)
    made = list(cases(vocab)) + list(mirostat_cases())
    for case in made:
        case["probabilities"] = {i: float(f"{p:.6g}") for i, p in case["probabilities"].items()}
    print('{"logits":[')
    print(",\n".join(json.dumps([float(z) for z in f]) for f in families()))
    print('],"cases":[')
    print(",\n".join(json.dumps(c, separators=(",", ":")) for c in made))
    print("]}")


if __name__ == "__main__":
    main()
