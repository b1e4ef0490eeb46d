"""Speculation (`speculative_tokens`): the same answers, in fewer steps, and told by the metrics."""

import pytest

from test_metrics import family, total

REPEAT = "red, green, blue, white, black, grey\n" * 6 + "red, green,"
SPEC = ("num_drafts_total", "num_draft_tokens_total", "num_accepted_tokens_total")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 5, "top_p": 0.9}, {"temperature": 0, "stop": "white", "min_tokens": 20}])
def test_the_same_answer(daemon, sampling):
    fields = {"max_tokens": 60, "logprobs": 2, "n": 2, **sampling}
    expected = daemon.complete(REPEAT, speculative_tokens=0, **fields).json()
    for tokens in (1, 16):
        got = daemon.complete(REPEAT, speculative_tokens=tokens, **fields).json()
        assert got["choices"] == expected["choices"]
        assert got["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]
    stream = daemon.open_stream(REPEAT, speculative_tokens=16, **{**fields, "n": 1})
    assert stream.text() == expected["choices"][0]["text"]
    stream.close()


def counters(daemon):
    m = daemon.metrics()
    return {k: total(m, k) for k in ("inferd_engine_steps_total", "inferd_drafts_total", "inferd_drafted_tokens_total",
                                     "inferd_accepted_tokens_total")}, m


def test_fewer_steps_and_what_the_metrics_say(daemon):
    ids = daemon.post("/tokenize", {"prompt": REPEAT}).json()["tokens"]
    fields = {"max_tokens": 100, "ignore_eos": True, "logit_bias": {str(i): 25 for i in ids}}  # it can only repeat itself
    before, _ = counters(daemon)
    text = daemon.complete(REPEAT, **fields).json()["choices"][0]["text"]
    plain, _ = counters(daemon)
    assert plain["inferd_drafts_total"] == before["inferd_drafts_total"], "it is off by default"
    assert daemon.complete(REPEAT, speculative_tokens=16, **fields).json()["choices"][0]["text"] == text
    after, m = counters(daemon)
    steps = after["inferd_engine_steps_total"] - plain["inferd_engine_steps_total"]
    assert steps < (plain["inferd_engine_steps_total"] - before["inferd_engine_steps_total"]) * 0.9  # how many fewer depends on what steps are measured to cost
    assert 20 < after["inferd_accepted_tokens_total"] - before["inferd_accepted_tokens_total"] < 100
    assert after["inferd_accepted_tokens_total"] <= after["inferd_drafted_tokens_total"]
    for (name, value), vllm in zip(list(after.items())[1:], SPEC):
        assert total(m, "vllm:spec_decode_" + vllm) == value, name
    for name in ("inferd_accepted_tokens_per_position_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total"):
        places = {int(dict(labels)["position"]): v for labels, v in family(m, name).items()}
        assert sorted(places) == list(range(16)) and sum(places.values()) == after["inferd_accepted_tokens_total"]
        assert list(places.values()) == sorted(places.values(), reverse=True)


def test_the_setting(start):
    daemon = start(speculative_tokens=8)
    _, m = counters(daemon)
    assert all(total(m, "vllm:spec_decode_" + name) == 0 for name in SPEC), "there from the first scrape on"
    text = daemon.complete(REPEAT, max_tokens=40, ignore_eos=True).json()["choices"][0]["text"]
    c, _ = counters(daemon)
    assert c["inferd_drafts_total"] > 0
    assert daemon.complete(REPEAT, max_tokens=40, ignore_eos=True, speculative_tokens=0).json()["choices"][0]["text"] == text
    assert counters(daemon)[0]["inferd_drafts_total"] == c["inferd_drafts_total"], "a request may do without"
