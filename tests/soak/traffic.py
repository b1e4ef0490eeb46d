"""Random requests of every kind, right and wrong, and ways to leave them. All of it follows from a random.Random."""

import json
import socket
import struct
import time

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
WORDS = "the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word but".split()
PREFIXES = [" ".join(WORDS[i:] + WORDS[:i]) + " " for i in range(4)]  # many prompts begin with one of these


def words(rng, most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def text(rng, most):
    """Now and then with a prefix that others have had, or with characters of several bytes."""
    return "".join([rng.choice(PREFIXES) * rng.randint(1, 6) if rng.random() < 0.4 else "", words(rng, most),
                    rng.choice(["", "", " čaj 茶 🍵", "\n\n\t x", " \\\" </s>"])])


def prompt(rng):
    kind = rng.random()
    if kind < 0.7:
        return text(rng, rng.choice([5, 30, 200]))
    if kind < 0.85:
        return [rng.randrange(20, 200) for _ in range(rng.randint(1, 100))]
    return [text(rng, 20) for _ in range(rng.randint(1, 3))]


def sampling(rng):
    """Each way of choosing, rarely more than a few at once."""
    ways = {
        "temperature": lambda: rng.choice([0, 0.3, 1, 2]), "top_p": lambda: rng.choice([0.1, 0.9, 1]),
        "top_k": lambda: rng.choice([-1, 1, 40]), "min_p": lambda: rng.choice([0, 0.1]), "typical_p": lambda: 0.7,
        "top_n_sigma": lambda: 1.5, "xtc_probability": lambda: 0.5, "dynatemp_range": lambda: 0.5,
        "presence_penalty": lambda: rng.uniform(-2, 2), "frequency_penalty": lambda: rng.uniform(-2, 2),
        "repetition_penalty": lambda: rng.uniform(0.8, 1.5), "repeat_last_n": lambda: rng.choice([-1, 0, 20]),
        "dry_multiplier": lambda: 0.8, "mirostat": lambda: rng.choice([1, 2]), "seed": lambda: rng.randrange(1000),
        "logit_bias": lambda: {str(rng.randrange(200)): rng.uniform(-100, 5) for _ in range(rng.randint(1, 20))},
        "bad_words": lambda: [rng.choice(WORDS) for _ in range(rng.randint(1, 5))],
        "allowed_token_ids": lambda: sorted({rng.randrange(250) for _ in range(60)}),
        "min_tokens": lambda: 1, "ignore_eos": lambda: True,
        "stop": lambda: [rng.choice(["e", " the", "\n", "zzz", "é"]) for _ in range(rng.randint(1, 4))],
        "stop_token_ids": lambda: [rng.randrange(200) for _ in range(rng.randint(1, 8))],
        "include_stop_str_in_output": lambda: True, "skip_special_tokens": lambda: False,
        "repetition_detection": lambda: {"max_pattern_size": 4, "min_count": 3},
        "samplers": lambda: rng.choice(["temperature;top_k", ["dry", "top_p", "xtc"], "penalties"]),
        "speculative_tokens": lambda: rng.randint(0, 8), "priority": lambda: rng.randint(-3, 3),
        "cache_salt": lambda: rng.choice("abc"), "user": lambda: "somebody", "request_id": lambda: f"id-{rng.randrange(9999)}",
        "timeout": lambda: rng.choice([0.02, 0.3, 5]),
    }
    return {name: ways[name]() for name in rng.sample(sorted(ways), rng.choice([0, 1, 2, 4, 8]))}


def valid(rng, model):
    """(path, body) of a request that the server must take."""
    body = {"model": model, **sampling(rng), "max_tokens": rng.choice([1, 3, 10, 40, 120])}
    if rng.random() < 0.2:
        body["n"] = rng.randint(2, 4)
    if rng.random() < 0.6:
        body["stream"] = True
        if rng.random() < 0.5:
            body["stream_options"] = {"include_usage": rng.random() < 0.7}
    elif rng.random() < 0.1:
        body["prompt_logprobs"] = rng.randint(0, 3)
    if rng.random() < 0.5:
        body["messages"] = [{"role": role, "content": text(rng, 30)} for role in ("system", "user")[rng.randint(0, 1):]]
        if rng.random() < 0.3:
            body["logprobs"] = True
            body["top_logprobs"] = rng.randint(0, 5)
        return CHAT, body
    body["prompt"] = prompt(rng)
    if rng.random() < 0.2:
        body["echo"] = True
        if rng.random() < 0.3 and "min_tokens" not in body:
            body["max_tokens"] = 0
    if rng.random() < 0.3:
        body["logprobs"] = rng.randint(0, 5)
    return COMPLETIONS, body


def post(path, body, headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n{headers}"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n").encode() + data


def malformed(rng, model):
    """(bytes, statuses that are right: 0 = the connection may be closed without a word)"""
    path, body = valid(rng, model)
    body.pop("timeout", None)
    data = json.dumps(body).encode()
    kind = rng.randrange(14)
    if kind == 0:
        return post(path, data[: rng.randrange(len(data))]), {400}
    if kind == 1:
        at = rng.randrange(len(data))
        return post(path, data[:at] + bytes([rng.choice([0, 1, 0x1F, 0xC0, 0xFF])]) + data[at:]), {400}
    if kind == 2:
        field, value = rng.choice([("temperature", "hot"), ("max_tokens", -1), ("n", 10**6), ("stop", {}), ("top_p", 0),
                                   ("logit_bias", {"-1": 1}), ("seed", 1.5), ("stream", 1), ("priority", 2**40),
                                   ("timeout", 0), ("max_tokens", 2**53), ("allowed_token_ids", [-1]), ("model", 3)])
        return post(path, {**body, field: value}), {400}
    if kind == 3:
        return post(path, {**body, "model": "another"}), {404}
    if kind == 4:
        return post(path, {**body, rng.choice(["guided_json", "watermark", "structured_outputs"]): 3}), {400}
    if kind == 5:
        return post(path, b"[" * rng.choice([10, 1000, 100000])), {400}
    if kind == 6:
        return post("/v1/" + words(rng, 1), body), {404}
    if kind == 7:
        return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(), {405}
    if kind == 8:
        return post(path, data).replace(b"application/json", b"text/plain"), {400}
    if kind == 9:
        return post(path, data, f"X-Filler: {'x' * rng.choice([30000, 60000])}\r\n"), {400, 431, 200, 0}
    if kind == 10:
        return post(path, data, f"Content-Length: {rng.randrange(1000)}\r\n"), {400, 0}
    if kind == 11:
        return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
                f"Connection: close\r\n\r\n{rng.choice(['zz', '-5', 'fffffffffffffffff'])}\r\n").encode() + data, {400, 413, 0}
    if kind == 12:
        return bytes(rng.randrange(256) for _ in range(rng.randint(1, 300))) + b"\r\n\r\n", {400, 404, 405, 414, 431, 501, 505, 0}
    return post(path, {**body, "messages" if path == CHAT else "prompt": rng.choice([[], 5, [5.5], {"a": 1}, [None]])}), {400}


# --- leaving


def reset(s):
    """Close with RST in place of FIN."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def leave(rng, s, data, patience):
    """Send a part of a request or all of it, take a part of the answer or none, and go."""
    where = rng.randrange(7)
    if where == 0:
        s.sendall(data[: rng.randrange(len(data))])
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, patience))
    else:
        s.sendall(data)
    if where == 2:
        time.sleep(rng.uniform(0, patience))
    if where == 3:
        s.shutdown(socket.SHUT_WR)
    if where in (4, 5):
        left = rng.choice([1, 200, 2000, 20000])
        while left > 0:
            part = s.recv(min(left, 4096))
            if not part:
                break
            left -= len(part)
    if where == 6:  # stops reading
        s.recv(1)
        time.sleep(rng.uniform(0, 4 * patience))
    if rng.random() < 0.4:
        reset(s)
