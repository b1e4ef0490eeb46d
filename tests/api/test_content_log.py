"""What clients ask and are answered, written where the operator wants it and nowhere else."""

import json
import os
import stat
import subprocess

import pytest
from conftest import FAKE, wait_for

pytestmark = pytest.mark.skipif(not os.path.isfile(FAKE), reason="fake_inferd was not built (option tests)")


def records(*paths):
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert text.endswith("\n") or not text
        found += [json.loads(line) for line in text.splitlines()]
    return found


def wait_records(n, *paths):
    wait_for(lambda: sum(p.read_text(encoding="utf-8").count("\n") for p in paths if p.exists()) >= n, 5, f"{n} records")
    return records(*(p for p in paths if p.exists()))


def test_prompts_and_answers(fake, tmp_path):
    path = tmp_path / "content"
    d = fake(content_log=path, api_key="key-of-somebody")
    d.key = "key-of-somebody"
    body = {"model": "fake", "messages": [{"role": "user", "content": "h\u00e9 @say \u4f60\u597d \"x\"\n@end"}], "n": 2}
    text = json.dumps(body, indent=2)  # with line ends
    answer = d.post("/v1/chat/completions", text.encode(), headers={"X-Request-Id": "mine"})
    assert answer.status == 200
    stream = d.open_stream("@say streamed words@end")
    streamed = stream.text()
    d.complete("@error=3 @loop", max_tokens=50)
    d.post("/v1/completions", b"{not json: a secret")
    d.post("/tokenize", {"prompt": "a secret"})
    found = wait_records(3, path)
    chat = next(r for r in found if r["request_id"] == "mine")
    assert chat["request"] == body and chat["answers"] == [c["message"]["content"] for c in answer.json()["choices"]]
    assert chat["response_id"] == answer.json()["id"] and chat["key"] == "api_key" and chat["status"] == 200 and chat["finish"] == "stop"
    assert chat["route"] == "/v1/chat/completions" and chat["model"] == "fake"
    completion = next(r for r in found if r["request"].get("prompt") == "@say streamed words@end")
    assert completion["answers"] == [streamed] and streamed == "streamed words"
    failed = next(r for r in found if r["finish"] == "error")
    assert failed["status"] == 500 and len(failed["answers"][0]) == 3
    assert len(found) == 3 and "a secret" not in path.read_text() and "key-of" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    log = d.log_text()
    assert "is written to" in log and "streamed" not in log
    # the end waits for what is still to be written
    d.stop()
    assert len(records(path)) == 3


def test_what_a_client_left_is_there_as_far_as_it_got(fake, tmp_path):
    path = tmp_path / "content"
    d = fake(content_log=path)
    stream = d.open_stream("@delay=5 @loop", max_tokens=1000)
    events = stream.events()
    seen = "".join(next(events)["choices"][0]["text"] for _ in range(5))
    stream.close()
    record, = wait_records(1, path)
    assert record["finish"] == "cancelled" and record["answers"][0].startswith(seen)


def test_the_cap(fake, tmp_path):
    path, old = tmp_path / "content", tmp_path / "content.1"
    d = fake(content_log=path, content_log_max=8192)
    for i in range(40):
        assert d.complete(f"{i} " + "x" * 1000, max_tokens=1).status == 200
    d.wait_idle()

    def last_is_there():
        try:
            return '"39 ' in path.read_text() + old.read_text()
        except FileNotFoundError:
            return False  # one is just becoming the other

    wait_for(last_is_there, 5, "the last one is there")
    assert all(p.stat().st_size <= 8192 for p in (path, old))
    kept = [int(r["request"]["prompt"].split()[0]) for r in records(old, path)]
    assert len(set(kept)) == len(kept) and 7 <= len(kept) < 15 and min(kept) > 20
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(old.stat().st_mode) == 0o600
    # what is larger than all of it is lost, and counted
    assert d.complete("y", max_tokens=1, of_no_concern="y" * 9000).status == 200
    wait_for(lambda: d.gauge("log_lines_lost_total") == 1, 5, "it is counted")
    assert "larger than content_log_max" in d.log_text()


def test_a_file_that_others_could_read_becomes_private_and_goes_on(fake, tmp_path):
    path = tmp_path / "content"
    path.write_text("{}\n")
    path.chmod(0o644)
    d = fake(content_log=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    d.complete("x", max_tokens=1)
    assert len(wait_records(2, path)) == 2


@pytest.mark.parametrize("what", ["folder", "link", "missing", "fifo"])
def test_what_is_no_file_is_refused_at_the_start(tmp_path, what):
    path = tmp_path / "content"
    if what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path = tmp_path / "nowhere" / "content"
    model = tmp_path / "fake.gguf"
    model.touch()
    done = subprocess.run([FAKE, "serve", str(model), "--port=0", f"--content-log={path}"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 78 and "content_log: " + str(path) in done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_without_the_setting_nothing_is_written(fake, tmp_path):
    d = fake()
    d.complete("a secret @say a whisper", max_tokens=5)
    d.stop()
    for folder, _, files in os.walk(tmp_path):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                content = f.read()
            assert b"a secret" not in content and b"a whisper" not in content, name
