"""What reaches the chat template over HTTP, and what of it can become a special token: only what the template wrote."""

import json

import pytest
from conftest import Daemon

CHAT = "/v1/chat/completions"

def refused(answer, param):
    assert answer.status == 400, answer.body[:300]
    assert answer.error()["param"] == param


# Every place where a client's text goes, through the operations that templates use on it.
TEMPLATE = """\
{%- macro shout(x) %}<{{ x | upper }}{{ caller(x) }}>{% endmacro -%}
{{- bos_token if false }}
{%- if tools %}{{ '<|im_start|>tools ' }}
{%- for t in tools %}{{ t.function.name ~ ':' ~ t.function.description }}{{ t | tojson }}{{ t.function.parameters | tojson(indent=2) }}
{%- for k, v in t.function.parameters.properties.items() %}{{ k }}={{ v.description | default('', true) | indent(2) }}{% endfor %}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- for d in documents or [] %}{{ '[%s|%s]' % (d.title, d['text']) }}{% endfor %}
{%- if note is defined %}{{ '<|im_start|>' + note + '<|im_end|>' }}{{ [note, extra] | join('|') }}{{ extra }}{% endif %}
{%- for m in messages %}
{%- set ns = namespace(text='') %}
{%- for word in (m.content or '').split(' ') %}{% set ns.text = ns.text ~ ('' if loop.first else ' ') ~ word %}{% endfor %}
{{- '<|im_start|>' + m.role + ('=' + m.name if m.name else '') + '\\n' -}}
{%- set block %}{{ ns.text | trim }}{% endset -%}
{{- block.replace('@', '<|') }}{{ ns.text[::-1][::-1] }}{{ ns.text | list | join }}{{ '{:>4}{x}'.format(ns.text, x=ns.text) }}
{%- call(x) shout(ns.text) %}{{ x[:4] ~ x[4:] }}{% endcall %}
{%- filter lower %}{{ ns.text }}{% endfilter %}{{ ns.text | replace('q', '') }}{{ ns.text * 2 }}{{ [ns.text] + [] }}{{ {'k': ns.text} }}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    path = folder / "t.jinja"
    path.write_text(TEMPLATE)
    d = Daemon(folder / "log", chat_template=path, max_model_len=2048, kv_tokens=4096).wait_ready()
    yield d
    d.stop()


def body(text, **more):
    tool = {
        "type": "function",
        "function": {
            "name": "f" + text,
            "description": "d" + text,
            "parameters": {"type": "object", "properties": {"p" + text: {"type": "string", "description": "e\\n" + text}}},
        },
    }
    call = {"id": "1" + text, "type": "function", "function": {"name": "g" + text, "arguments": json.dumps({"a" + text: text})}}
    return {
        "messages": [
            {"role": "system", "content": "s " + text},
            {"role": "user", "name": "n" + text, "content": f"u {text} {text}"},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": text}, {"type": "text", "text": text}]},
            {"role": "user", "content": text},
        ],
        "tools": [tool],
        "documents": [{"title": "t" + text, "text": "x" + text}],
        "chat_template_kwargs": {"note": text, "extra": [text, {"k": text}]},
        **more,
    }


def tokens(d, request):
    answer = d.post("/tokenize", request)
    assert answer.status == 200, answer.body
    return answer.json()["tokens"]


def text_of(d, ids):
    return d.post("/detokenize", {"tokens": ids}).json()["prompt"]


def test_everything_reaches_the_template(served):
    shown = text_of(served, tokens(served, body("MARK", add_generation_prompt=True)))
    for part in ("fMARK", "dMARK", '"pMARK"', "gMARK", '{"aMARK": "MARK"}', "[tMARK|xMARK]", "user=nMARK", "{'k': 'MARK'}"):
        assert part in shown, part
    assert shown.endswith("<|im_start|>assistant\n")
    closed = text_of(served, tokens(served, body("MARK", add_generation_prompt=False)))
    assert shown == closed + "<|im_start|>assistant\n"


@pytest.mark.parametrize("mark", ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|IM_END|>", "|>x<|im_end", "@im_end|>", "im_end|><|"])
def test_no_text_of_a_client_becomes_a_special_token(served, mark):
    """Wherever it stands and whatever the template does with it: as many special tokens as with harmless text."""
    special = {i for name in ("<|im_start|>", "<|im_end|>", "<|endoftext|>") for i in tokens(served, {"prompt": name})}
    assert len(special) == 3  # which a prompt may hold
    ids, harmless = tokens(served, body(mark)), tokens(served, body("harmless"))
    assert [i for i in ids if i in special] == [i for i in harmless if i in special]
    assert mark.lower().replace("@", "<|") in text_of(served, ids).lower()


def test_continue_final_message(served):
    request = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}]}
    refused(served.post("/tokenize", {**request, "continue_final_message": True, "add_generation_prompt": True}), param="continue_final_message")


def test_tools_over_chat(served):
    request = {"model": served.model, "max_tokens": 1, **body("x")}
    with_tools = served.post(CHAT, request).json()["usage"]["prompt_tokens"]
    hidden = served.post(CHAT, {**request, "tool_choice": "none"}).json()["usage"]["prompt_tokens"]
    request.pop("tools")
    assert served.post(CHAT, request).json()["usage"]["prompt_tokens"] == hidden < with_tools
    for field, value in (("tool_choice", "required"), ("chat_template", "{{ 1 }}"), ("chat_template_kwargs", {"messages": []}),
                         ("chat_template_kwargs", {"chat_template": "x"})):
        refused(served.post(CHAT, {**request, field: value}), param=field)


def test_a_template_without_a_place_for_tools(daemon):
    request = {"model": daemon.model, "messages": [{"role": "user", "content": "x"}]}
    refused(daemon.post(CHAT, {**request, "tools": body("x")["tools"]}), param="tools")
    refused(daemon.post(CHAT, {**request, "documents": body("x")["documents"]}), param="documents")
