"""Write a GGUF of random weights in one of the shapes of `inferd bench --shape`, for programs that read files.

    make_shape_gguf.py smol Q8_0 OUT.gguf        shapes: smol, tiny; types: F16, BF16, Q8_0, Q4_0, Q4_1

The vocabulary is a SentencePiece one: <unk>, <s>, </s>, the bytes, then made-up words, so that servers have a tokenizer.
Needs numpy and gguf.
"""

import sys

import gguf
import numpy

SHAPES = {  # layers, embedding, feed-forward, heads, KV heads, head size, vocabulary, the head is the embedding
    "smol": (30, 576, 1536, 9, 3, 64, 32000, True),
    "tiny": (22, 2048, 5632, 32, 4, 64, 32000, False),
}


def vocabulary(n):
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    kinds = [gguf.TokenType.UNKNOWN] + 2 * [gguf.TokenType.CONTROL] + 256 * [gguf.TokenType.BYTE]
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    i = 0
    while len(tokens) < n:  # single letters first, then words that no other spells
        word, k = "", i
        while True:
            word = letters[k % 26] + word
            k = k // 26 - 1
            if k < 0:
                break
        tokens.append(word if i < 26 else "\u2581" + word)
        kinds.append(gguf.TokenType.NORMAL)
        i += 1
    return tokens, kinds


def write(shape, kind, path, context=8192):
    layers, embd, ff, heads, kv_heads, head, vocab, tied = SHAPES[shape]
    file_type = gguf.GGMLQuantizationType[kind]
    w = gguf.GGUFWriter(path, "llama")
    w.add_name(f"{shape}-{kind}")
    w.add_block_count(layers)
    w.add_context_length(context)
    w.add_embedding_length(embd)
    w.add_feed_forward_length(ff)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_rope_dimension_count(head)
    w.add_rope_freq_base(10000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(vocab)
    w.add_file_type(gguf.LlamaFileType[{"F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16"}.get(kind, "MOSTLY_" + kind)])
    tokens, kinds = vocabulary(vocab)
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(vocab)])
    w.add_token_types(kinds)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)

    rng = numpy.random.default_rng(7)
    pattern = rng.standard_normal(1 << 22).astype(numpy.float32)

    def matrix(name, n, k):
        at = int(rng.integers(len(pattern)))
        x = numpy.resize(numpy.roll(pattern, at), (n, k)) / numpy.float32(k**0.5)
        w.add_tensor(name, gguf.quants.quantize(x, file_type), raw_dtype=file_type)

    def ones(name):
        w.add_tensor(name, numpy.ones(embd, dtype=numpy.float32))

    matrix("token_embd.weight", vocab, embd)
    ones("output_norm.weight")
    if not tied:
        matrix("output.weight", vocab, embd)
    for i in range(layers):
        ones(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", heads * head, embd)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * head, embd)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * head, embd)
        matrix(f"blk.{i}.attn_output.weight", embd, heads * head)
        ones(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", ff, embd)
        matrix(f"blk.{i}.ffn_up.weight", ff, embd)
        matrix(f"blk.{i}.ffn_down.weight", embd, ff)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in SHAPES:
        sys.exit(__doc__)
    write(*sys.argv[1:])
