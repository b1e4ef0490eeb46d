"""What an application sees: the official openai client against the daemon."""

import openai
import pytest
from conftest import wait_for, write_keys

MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


@pytest.fixture
def client(daemon):
    return daemon.client()


def test_list_models(daemon, client):
    (model,) = client.models.list().data
    assert model.object == "model" and model.id == daemon.model and model.created > 0
    assert client.models.retrieve(model.id).id == model.id


def test_chat(daemon, client):
    answer = client.chat.completions.create(model=daemon.model, messages=MESSAGES, temperature=0, max_tokens=40)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == daemon.model
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    u = answer.usage
    assert u.prompt_tokens > 10 and 3 < u.completion_tokens <= 40 and u.total_tokens == u.prompt_tokens + u.completion_tokens


def test_history_and_content_parts(daemon, client):
    def ask(*messages):
        messages = [{"role": role, "content": content} for role, content in messages]
        answer = client.chat.completions.create(model=daemon.model, messages=messages, temperature=0, max_tokens=24)
        return answer.choices[0].message.content, answer.usage.prompt_tokens

    question = "What is the capital of France?"
    alone = ask(("user", question))
    assert "Paris" in alone[0]
    assert ask(("user", [{"type": "text", "text": question}])) == alone
    told = ask(("system", "You are terse."), ("user", "Hello."), ("assistant", "Hello!"), ("user", question))
    assert told[1] > alone[1] and told[0] != ""


def test_stream_equals_plain(daemon, client):
    fields = {"model": daemon.model, "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    plain = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert {c.id for c in chunks} == {chunks[0].id} and {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({c.created for c in chunks}) == 1
    first, *middle, last = chunks
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
    assert all(c.choices[0].delta.content for c in middle), "an empty delta between the first and the last"
    assert all(c.choices[0].finish_reason is None for c in chunks[:-1]) and last.choices[0].finish_reason == "stop"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == plain.choices[0].message.content
    assert all(c.usage is None for c in chunks)


def test_usage_in_a_stream(daemon, client):
    fields = {"model": daemon.model, "messages": MESSAGES, "temperature": 0, "max_tokens": 5}
    plain = client.chat.completions.create(**fields)
    *chunks, last = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and all(c.usage is None for c in chunks)
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (plain.usage.prompt_tokens, plain.usage.completion_tokens)
    assert chunks[-1].choices[0].finish_reason == "length" and plain.choices[0].finish_reason == "length"


def test_completions(daemon, client):
    answer = client.completions.create(model=daemon.model, prompt="The capital of France is", temperature=0, max_tokens=8)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert "Paris" in answer.choices[0].text and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    chunks = list(client.completions.create(model=daemon.model, prompt="The capital of France is", temperature=0, max_tokens=8, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == answer.choices[0].text


def test_several_prompts(daemon, client):
    prompts = ["The capital of France is", "Two plus two is", "Water boils at"]
    both = client.completions.create(model=daemon.model, prompt=prompts, temperature=0, max_tokens=6)
    assert [c.index for c in both.choices] == [0, 1, 2]
    for choice, prompt in zip(both.choices, prompts):
        alone = client.completions.create(model=daemon.model, prompt=prompt, temperature=0, max_tokens=6)
        assert alone.choices[0].text == choice.text


def test_prompt_as_token_ids(daemon, client):
    ids = daemon.post("/tokenize", {"prompt": "The capital of France is"}).json()["tokens"]
    text = client.completions.create(model=daemon.model, prompt="The capital of France is", temperature=0, max_tokens=6)
    same = client.completions.create(model=daemon.model, prompt=ids, temperature=0, max_tokens=6)
    assert same.choices[0].text == text.choices[0].text and same.usage.prompt_tokens == len(ids)


def test_stop_strings(daemon, client):
    fields = {"model": daemon.model, "prompt": "Count: one, two, three,", "temperature": 0, "max_tokens": 24}
    whole = client.completions.create(**fields).choices[0].text
    # every stop string that occurs cuts the text right before its first occurrence, wherever tokens begin and end
    for start in range(0, min(len(whole), 30), 3):
        for length in (1, 2, 5, 9):
            stop = whole[start : start + length]
            if not stop:
                continue
            cut = client.completions.create(**fields, stop=stop).choices[0]
            assert cut.text == whole[: whole.index(stop)], repr(stop)
            assert cut.finish_reason == "stop"
    stop = whole[7:12]
    streamed = list(client.completions.create(**fields, stop=[stop, "never said"], stream=True))
    assert "".join(c.choices[0].text for c in streamed) == whole[: whole.index(stop)]
    assert streamed[-1].choices[0].finish_reason == "stop"


def test_max_tokens(daemon, client):
    for n in (1, 2, 7):
        answer = client.chat.completions.create(model=daemon.model, messages=MESSAGES, max_completion_tokens=n, temperature=0)
        assert answer.usage.completion_tokens == n and answer.choices[0].finish_reason == "length"


def test_seed(daemon, client):
    def say(seed):
        answer = client.completions.create(model=daemon.model, prompt="Once upon a time", temperature=1.2, max_tokens=24, seed=seed)
        return answer.choices[0].text

    first = say(42)
    assert say(42) == first and say(-(2**63)) == say(-(2**63)) and say(2**63 - 1) == say(2**63 - 1)
    assert len({first, say(43), say(44), say(45)}) == 4
    # a seed above 2^53 is not rounded: neighbours there differ
    assert say(2**53 + 1) != say(2**53)


def test_without_a_seed_answers_differ(daemon, client):
    texts = {
        client.completions.create(model=daemon.model, prompt="Once upon a time", temperature=1.5, max_tokens=24).choices[0].text
        for _ in range(4)
    }
    assert len(texts) > 1


def test_n(daemon, client):
    fields = {"model": daemon.model, "messages": MESSAGES, "temperature": 1.3, "seed": 7, "max_tokens": 16, "n": 3}
    plain = client.chat.completions.create(**fields)
    assert [c.index for c in plain.choices] == [0, 1, 2]
    texts = [c.message.content for c in plain.choices]
    assert len(set(texts)) == 3, "choices of one seed differ"
    assert plain.usage.completion_tokens <= 48
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_logprobs(daemon, client):
    answer = client.chat.completions.create(
        model=daemon.model, messages=MESSAGES, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    choice = answer.choices[0]
    content = choice.logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert "".join(e.token for e in content) == choice.message.content
    for entry in content:
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
        assert len(entry.top_logprobs) == 3 and entry.logprob <= 0
        probabilities = [t.logprob for t in entry.top_logprobs]
        assert probabilities == sorted(probabilities, reverse=True)
        assert entry.top_logprobs[0].token == entry.token and entry.logprob == pytest.approx(probabilities[0], abs=1e-4)


def test_logprobs_without_top(daemon, client):
    answer = client.chat.completions.create(model=daemon.model, messages=MESSAGES, temperature=0, max_tokens=3, logprobs=True)
    assert all(e.top_logprobs == [] and e.bytes is not None for e in answer.choices[0].logprobs.content)
    answer = client.chat.completions.create(model=daemon.model, messages=MESSAGES, temperature=0, max_tokens=3)
    assert answer.choices[0].logprobs is None


def test_logprobs_in_a_stream(daemon, client):
    fields = {"model": daemon.model, "messages": MESSAGES, "temperature": 0, "max_tokens": 8, "logprobs": True}
    plain = client.chat.completions.create(**fields).choices[0]
    text, tokens = "", []
    for chunk in client.chat.completions.create(**fields, stream=True):
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].logprobs:
            tokens += chunk.choices[0].logprobs.content or []
    assert text == plain.message.content
    assert [t.token for t in tokens] == [t.token for t in plain.logprobs.content]


def test_logprobs_of_a_token_in_which_a_stop_string_begins(daemon, client):
    """Joined, the tokens are the text, also where the text ends in the middle of one."""
    fields = {"model": daemon.model, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 24, "logprobs": 1}
    whole = client.completions.create(**fields).choices[0]
    stops = 0
    for token, offset in list(zip(whole.logprobs.tokens, whole.logprobs.text_offset))[:8]:
        for stop in (token[1:], whole.text[offset + 1:offset + len(token) + 3]):  # ends with it, or goes on behind it
            at = whole.text.find(stop) if len(token) > 1 else -1
            if at <= 0:
                continue
            stops += 1
            plain = client.completions.create(**fields, stop=stop).choices[0]
            assert plain.text == whole.text[:at] and "".join(plain.logprobs.tokens) == plain.text, stop
            chunks = [c.choices[0] for c in client.completions.create(**fields, stop=stop, stream=True)]
            assert "".join(c.text for c in chunks) == plain.text
            assert [t for c in chunks if c.logprobs for t in c.logprobs.tokens] == plain.logprobs.tokens, stop
    assert stops >= 4


def test_completion_logprobs(daemon, client):
    answer = client.completions.create(model=daemon.model, prompt="The capital of France is", temperature=0, max_tokens=5, logprobs=2)
    p = answer.choices[0].logprobs
    assert len(p.tokens) == len(p.token_logprobs) == len(p.top_logprobs) == len(p.text_offset) == 5
    assert "".join(p.tokens) == answer.choices[0].text and all(len(t) >= 2 for t in p.top_logprobs)


def test_logit_bias(daemon, client):
    fields = {"model": daemon.model, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 1}
    (token,) = daemon.post("/tokenize", {"prompt": " Berlin", "add_special_tokens": False}).json()["tokens"][:1]
    usual = client.completions.create(**fields).choices[0].text
    pushed = client.completions.create(**fields, logit_bias={str(token): 100}).choices[0].text
    assert pushed != usual and " Berlin".startswith(pushed)


def test_penalties_change_the_text(daemon, client):
    fields = {"model": daemon.model, "prompt": "la la la la la la la la", "temperature": 0, "max_tokens": 16}
    usual = client.completions.create(**fields).choices[0].text
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"extra_body": {"repetition_penalty": 1.8}}):
        assert client.completions.create(**fields, **penalty).choices[0].text != usual, penalty


def test_bad_request(daemon, client):
    for fields, param in [
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"n": 1000000}, "n"),
        ({"logit_bias": {"999999": 5}}, "logit_bias"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ]:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(model=daemon.model, messages=MESSAGES, stream=stream, **fields)
            assert caught.value.status_code == 400 and caught.value.type == "invalid_request_error"
            assert caught.value.param.split(".")[0] == param


def test_context_length(daemon, client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=daemon.model, prompt="word " * 4000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"


def test_unknown_model(daemon, client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-17", messages=MESSAGES)
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-17")


def test_rate_limit(start):
    d = start(max_waiting=1, max_sequences=1)
    # long enough that neither ends before the refusals, however fast the machine
    busy = [d.open_stream("Once upon a time", max_tokens=2000, ignore_eos=True)]
    try:
        next(busy[0].events())  # before it runs it waits itself, and there is no place for two
        busy.append(d.open_stream("Once upon a time", max_tokens=2000, ignore_eos=True))
        wait_for(lambda: d.gauge("requests_waiting") == 1, 5, "the second one waits")
        with pytest.raises(openai.RateLimitError) as caught:
            for _ in range(3):
                d.client().chat.completions.create(model=d.model, messages=MESSAGES, max_tokens=1)
        assert caught.value.code == "queue_full" and int(caught.value.response.headers["retry-after"]) >= 1
    finally:
        for stream in busy:
            stream.close()


def test_keys(start, tmp_path):
    keys = tmp_path / "keys"
    write_keys(keys, ["secret-one", "secret-two"])
    d = start(api_keys_file=keys)
    for key in ("secret-one", "secret-two"):
        assert d.client(api_key=key).models.list().data
    for key in ("secret-three", "secret-on", "secret-onee", "# who may ask"):
        with pytest.raises(openai.AuthenticationError) as caught:
            d.client(api_key=key).models.list()
        assert caught.value.code == "invalid_api_key" and key not in str(caught.value.body)
    # deny by default: only the probes are open
    for path in ("/livez", "/readyz", "/health"):
        assert d.get(path).status == 200
    for path in ("/v1/models", "/metrics", "/version", "/nowhere", "/"):
        assert d.get(path).status == 401, path
    d.key = "secret-one"
    for path, status in (("/v1/models", 200), ("/metrics", 200), ("/version", 200), ("/nowhere", 404)):
        assert d.get(path).status == status, path


def test_request_id(daemon, client):
    raw = client.with_raw_response.chat.completions.create(
        model=daemon.model, messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-Id": "abc-123"}
    )
    assert raw.headers["x-request-id"] == "abc-123"
    raw = client.with_raw_response.chat.completions.create(model=daemon.model, messages=MESSAGES, max_tokens=1)
    assert raw.headers["x-request-id"]
