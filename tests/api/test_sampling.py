"""Each way of choosing tokens does what it is for, and the same again for the same seed, in any company."""

import subprocess
import threading

import pytest
from conftest import INFERD

PROMPT = "The capital of France is"
LLAMA_ORDER = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"


def text_of(daemon, prompt=PROMPT, **fields):
    answer = daemon.complete(prompt, **{"max_tokens": 12, "ignore_eos": True, **fields})
    assert answer.status == 200, answer.body[:300]
    return answer.json()["choices"][0]["text"]


def sampled(daemon, prompt=PROMPT, **fields):
    return text_of(daemon, prompt, **{"temperature": 1.0, "seed": 5, **fields})


@pytest.fixture(scope="module")
def greedy(shared_daemon):
    return text_of(shared_daemon, temperature=0)


def token(daemon, text):
    (t,) = daemon.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return t


# settings so narrow that only the likeliest token is left
NARROW = [
    {"top_n_sigma": 0.0001},
    {"typical_p": 0.000001, "top_k": 1},
    {"mirostat": 2, "mirostat_tau": 0},
    {"mirostat": 1, "mirostat_tau": 0, "mirostat_eta": 0.0},
    {"min_p": 1},
    {"top_p": 0.000001, "samplers": ["top_p"]},
    {"top_k": 1, "samplers": LLAMA_ORDER},
    {"temperature": 0.0, "dynatemp_range": 0.0},
    {"dynatemp_range": 1.0, "dynatemp_exponent": 100},  # between 0 and 2, by a power that comes to 0
]


@pytest.mark.parametrize("fields", NARROW, ids=str)
def test_only_the_likeliest_is_left(daemon, greedy, fields):
    assert sampled(daemon, **fields) == greedy


def test_what_is_not_among_the_samplers_does_nothing(daemon, greedy):
    wide = sampled(daemon)
    assert wide != greedy
    assert sampled(daemon, top_k=1, samplers=["temperature"]) == wide
    assert sampled(daemon, top_k=1, samplers="temperature;top_k") == greedy
    assert sampled(daemon, temperature=0, samplers=[]) == wide


def test_min_keep_leaves_more(daemon, greedy):
    assert sampled(daemon, min_p=1, min_keep=50) != greedy
    assert sampled(daemon, top_p=0.000001, min_keep=50) != greedy


def test_xtc_passes_over_the_likely_ones(daemon, greedy):
    fields = {"xtc_threshold": 0.02, "top_k": 10}
    assert sampled(daemon, xtc_probability=0, **fields) == sampled(daemon, top_k=10)
    count = {"prompt": "1, 2, 3, 4, 5, 6, 7, 8,", "max_tokens": 2}
    assert sampled(daemon, **count, xtc_probability=1, xtc_threshold=0.00001) != sampled(daemon, **count, top_k=1)
    # above one half there are never two
    assert sampled(daemon, xtc_probability=1, xtc_threshold=0.51) == sampled(daemon)


def test_dynamic_temperature_moves_the_choice(daemon):
    assert sampled(daemon, dynatemp_range=0) == sampled(daemon)
    texts = {sampled(daemon, dynatemp_range=r) for r in (0.3, 0.6, 1.0)}
    assert texts != {sampled(daemon)}


def test_typical_p_moves_the_choice(daemon):
    assert sampled(daemon, typical_p=1) == sampled(daemon)
    assert {sampled(daemon, typical_p=0.1, seed=s) for s in range(4)} != {sampled(daemon, seed=s) for s in range(4)}


def test_dry_ends_a_repetition(daemon):
    prompt = "one two three four five one two three four five one two three four"
    assert text_of(daemon, prompt, temperature=0, max_tokens=1) == " five"
    for fields in ({"dry_multiplier": 5}, {"dry_multiplier": 5, "samplers": LLAMA_ORDER}, {"dry_multiplier": 5, "dry_sequence_breakers": ["x"]}):
        assert text_of(daemon, prompt, temperature=0, max_tokens=1, **fields) != " five"
    # nothing of it: it is as short as allowed, too far back, or behind a breaker
    for fields in ({"dry_allowed_length": 20}, {"dry_penalty_last_n": 3}, {"dry_penalty_last_n": 0}, {"dry_sequence_breakers": ["ou"]}):
        assert text_of(daemon, prompt, temperature=0, max_tokens=1, dry_multiplier=5, **fields) == " five", fields


def test_penalties_look_no_further_than_repeat_last_n(daemon):
    prompt = "yes, no, yes, no, yes, no, yes, no, yes,"
    plain = text_of(daemon, prompt, temperature=0, max_tokens=1)
    assert plain == " no"
    assert text_of(daemon, prompt, temperature=0, max_tokens=1, repetition_penalty=3.0) != plain
    assert text_of(daemon, prompt, temperature=0, max_tokens=1, repeat_penalty=3.0) != plain
    for n in (0, 1):  # the comma alone, or nothing
        assert text_of(daemon, prompt, temperature=0, max_tokens=1, repetition_penalty=3.0, repeat_last_n=n) == plain


def test_bad_words_do_not_come(daemon, greedy):
    assert " Paris" in greedy
    for words in (["Paris"], [" Paris"], ["Paris", "Lyon"]):
        assert "Paris" not in text_of(daemon, temperature=0, bad_words=words)
    two = greedy.split(" Paris", 1)[1].split()[0]  # a word of more than one token is held back at its end alone
    phrase = f"Paris{two}" if two[0] in ".,;" else f"Paris {two}"
    held = text_of(daemon, temperature=0, bad_words=[phrase])
    assert phrase not in held and held.startswith(greedy.split("Paris")[0] + "Paris")
    assert text_of(daemon, temperature=0, bad_words=[]) == greedy


def test_a_bad_word_of_white_space(daemon):
    yes, newline = token(daemon, " yes"), token(daemon, "\n")
    allowed = {"temperature": 0, "max_tokens": 6, "allowed_token_ids": [yes, newline], "logit_bias": {str(newline): 100}}
    assert text_of(daemon, **allowed) == "\n" * 6
    assert text_of(daemon, **allowed, bad_words=["\n"]) == " yes" * 6


def test_no_token_but_the_allowed_ones(daemon):
    yes, no = token(daemon, " yes"), token(daemon, " no")
    text = text_of(daemon, temperature=2.0, seed=1, allowed_token_ids=[yes, no], max_tokens=20)
    assert set(text.split()) == {"yes", "no"}
    # and none at all: an error, not a hang
    answer = daemon.complete(PROMPT, max_tokens=4, allowed_token_ids=[yes], bad_words=["yes", " yes"])
    assert answer.status == 400 and answer.error()["param"] == "allowed_token_ids"


@pytest.mark.parametrize("stream", [False, True])
def test_repetition_ends_the_answer(daemon, stream):
    yes = token(daemon, " yes")
    fields = {"max_tokens": 50, "allowed_token_ids": [yes], "repetition_detection": {"max_pattern_size": 4, "min_count": 5}}
    if stream:
        s = daemon.open_stream(PROMPT, **fields)
        choices = [c for e in s.events() for c in e["choices"]]
        assert choices[-1]["finish_reason"] == "repetition" and "".join(c["text"] for c in choices) == " yes" * 5
        s.close()
    else:
        before = daemon.metrics()
        answer = daemon.complete(PROMPT, **fields).json()
        assert answer["choices"][0]["finish_reason"] == "repetition" and answer["usage"]["completion_tokens"] == 5
        changed = [name for (name, labels), v in daemon.metrics().items() if v == before[name, labels] + 1 and "repetition" in dict(labels).values()]
        assert sorted(changed) == ["inferd_requests_finished_total", "vllm:request_success_total"]
    longer = {"max_pattern_size": 6, "min_pattern_size": 6, "min_count": 3}
    answer = daemon.complete(PROMPT, **{**fields, "repetition_detection": longer}).json()
    assert answer["usage"]["completion_tokens"] == 18
    answer = daemon.complete(PROMPT, **{**fields, "repetition_detection": longer, "min_tokens": 30}).json()
    assert answer["usage"]["completion_tokens"] == 30
    answer = daemon.complete(PROMPT, **{**fields, "repetition_detection": {"max_pattern_size": 0}}).json()
    assert answer["choices"][0]["finish_reason"] == "length"


EVERY = [
    {"typical_p": 0.8}, {"top_n_sigma": 1.2}, {"xtc_probability": 0.5, "xtc_threshold": 0.05, "min_p": 0.01}, {"dynatemp_range": 0.5},
    {"mirostat": 1}, {"mirostat": 2, "mirostat_tau": 3.0}, {"dry_multiplier": 0.8, "repetition_penalty": 1.1}, {"bad_words": ["the", "a"]},
    {"samplers": LLAMA_ORDER, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 1.3},
    {"allowed_token_ids": list(range(200, 5000))}, {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repeat_last_n": 8},
]


def test_the_same_alone_and_together(daemon):
    alone = [sampled(daemon, max_tokens=24, **f) for f in EVERY]
    assert alone == [sampled(daemon, max_tokens=24, **f) for f in EVERY]
    together = [None] * len(EVERY)

    def ask(i):
        together[i] = sampled(daemon, max_tokens=24, **EVERY[i])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(EVERY))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone
    assert len(set(alone)) > len(EVERY) // 2, "they are not the same thing by different names"


def test_two_choices_differ_and_repeat(daemon):
    for fields in ({"mirostat": 2}, {"xtc_probability": 0.5}, {"typical_p": 0.9}):
        def ask():
            answer = daemon.complete(PROMPT, n=2, seed=3, temperature=1.0, max_tokens=16, ignore_eos=True, **fields).json()
            return [c["text"] for c in sorted(answer["choices"], key=lambda c: c["index"])]

        first, second = ask()
        assert first != second and ask() == [first, second]


def test_chat_takes_them_too(daemon):
    yes = token(daemon, " yes")
    answer = daemon.chat("hi", max_tokens=30, allowed_token_ids=[yes], repetition_detection={"max_pattern_size": 2, "min_count": 3}).json()
    assert answer["choices"][0]["finish_reason"] == "repetition"
    assert answer["choices"][0]["message"]["content"] == " yes" * 3


def test_the_setting_of_the_order(start, tmp_path):
    d = start(samplers="temperature")
    wide = sampled(d, top_k=1)
    assert wide == sampled(d) and wide != text_of(d, temperature=0)
    assert sampled(d, top_k=1, samplers=["top_k"]) == text_of(d, temperature=0)
    # from a file, where ; begins a comment only at the beginning of a line
    conf = tmp_path / "samplers.conf"
    for value, code in (("top_k;top_p", 0), ("top_k;warmth", 78), ("top_k;top_k", 78)):
        conf.write_text(f"samplers = {value}\n")
        run = subprocess.run([INFERD, "serve", "--config", conf, "--model", __file__, "--check-config"], capture_output=True, text=True)
        assert run.returncode == code, run.stderr
        assert code == 0 or "samplers" in run.stderr
