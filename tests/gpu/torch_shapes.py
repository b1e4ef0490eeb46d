"""What PyTorch and transformers reach on the shapes of the table, BF16, eager: a JSON line each; exit code 77 where they are not."""

import json
import sys
import time

SHAPES = {  # embedding, feed-forward, layers, heads, KV heads, vocabulary
    "llama-7b": (4096, 11008, 32, 32, 32, 32000),
    "llama-8b": (4096, 14336, 32, 32, 8, 128256),
}


def main():
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        print(f"not installed: {error.name}")
        return 77
    if not torch.cuda.is_available():
        print("torch finds no GPU")
        return 77
    for name, (embd, ff, layers, heads, kv_heads, vocab) in SHAPES.items():
        config = LlamaConfig(hidden_size=embd, intermediate_size=ff, num_hidden_layers=layers, num_attention_heads=heads,
                             num_key_value_heads=kv_heads, vocab_size=vocab, max_position_embeddings=8192)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"), torch.no_grad():
            model = LlamaForCausalLM(config).eval()
        weights = 2 * sum(p.numel() for n, p in model.named_parameters() if "embed_tokens" not in n)
        kv_token = 2 * 2 * layers * kv_heads * (embd // heads)

        def step(ids, cache, model=model):
            with torch.inference_mode():
                return model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

        def timed(work):
            torch.cuda.synchronize()
            start = time.perf_counter()
            value = work()
            torch.cuda.synchronize()
            return value, time.perf_counter() - start

        for batch in (1, 32):
            ids = torch.randint(vocab, (batch, 128), device="cuda")
            out, _ = timed(lambda ids=ids: step(ids, None))
            token, seconds, n = ids[:, :1], 0.0, 0
            for i in range(24):
                out, took = timed(lambda out=out, token=token: step(token, out.past_key_values))
                if i >= 8:
                    seconds, n = seconds + took, n + 1
            row = {"what": "torch decode", "shape": name + " bf16", "rows": batch, "context": 128, "tokens_per_second": batch * n / seconds,
                   "seconds": seconds / n, "bytes": weights + batch * 144 * kv_token, "operations": weights * batch}
            print(json.dumps(row), flush=True)
            del out
        for tokens in (512, 2048):
            ids = torch.randint(vocab, (1, tokens), device="cuda")
            best = min(timed(lambda ids=ids: step(ids, None))[1] for _ in range(4))
            print(json.dumps({"what": "torch prefill", "shape": name + " bf16", "rows": 1, "context": tokens, "tokens_per_second": tokens / best,
                              "seconds": best, "bytes": weights, "operations": weights * tokens}), flush=True)
        del model
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
