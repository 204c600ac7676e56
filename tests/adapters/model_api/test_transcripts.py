"""Stored conversations: private, bounded, without secrets, and fit to be resumed."""

import os
from pathlib import Path

import pytest
from dragoman.adapters.model_api import transcripts
from dragoman.adapters.model_api.reply import Message
from dragoman.adapters.model_api.transcripts import (
    Transcripts,
    image_block,
    redacted,
    settled,
    state_directory,
)

ID = "00000000-0000-4000-8000-00000000000a"


def prompt(text: str) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same(text: str) -> str:
    return text


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    kept = Transcripts(tmp_path / "state")
    assert kept.load(ID) is None
    kept.save(ID, [prompt("Grüße\u2028")], same)
    assert kept.load(ID) == [prompt("Grüße\u2028")]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / f"{ID}.json").stat().st_mode & 0o777 == 0o600
    assert names(tmp_path / "state") == [f"{ID}.json"]


@pytest.mark.parametrize("name", ["../x", "", "a/b", ID.upper(), f"{ID}\n", "x" * 36])
def test_no_id_is_a_path(tmp_path: Path, name: str) -> None:
    assert Transcripts(tmp_path).load(name) is None
    with pytest.raises(OSError):  # noqa: PT011 - any will do
        Transcripts(tmp_path).save(name, [prompt("x")], same)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"version":2,"messages":[]}', b'{"version":1,"messages":[1]}']
)
def test_what_cannot_be_read_is_lost(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{ID}.json").write_bytes(content)
    assert Transcripts(tmp_path).load(ID) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    Transcripts(tmp_path).save(ID, [prompt("x")], same)
    (tmp_path / f"{ID}.json").rename(other)
    (tmp_path / f"{ID}.json").symlink_to(other)
    assert Transcripts(tmp_path).load(ID) is None


def test_the_oldest_prompts_are_forgotten_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "MOST_BYTES", 1000)
    answer: Message = {"role": "assistant", "content": [{"type": "text", "text": "y" * 300}]}
    Transcripts(tmp_path).save(ID, [prompt("x" * 300), answer, prompt("last"), answer], same)
    assert Transcripts(tmp_path).load(ID) == [prompt("last"), answer]


def test_images_are_forgotten_before_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "MOST_BYTES", 1000)
    large, small = image_block("image/png", "A" * 900), image_block("image/png", "B" * 9)
    first: Message = {"role": "user", "content": [large, {"type": "text", "text": "x"}]}
    second: Message = {"role": "user", "content": [small, {"type": "text", "text": "y"}]}
    Transcripts(tmp_path).save(ID, [first, second], same)
    assert Transcripts(tmp_path).load(ID) == [prompt("x"), second]


def test_no_secret_is_looked_for_in_an_image(tmp_path: Path) -> None:
    message: Message = {
        "role": "user",
        "content": [image_block("image/png", "AAAA"), {"type": "text", "text": "AAAA"}],
    }
    Transcripts(tmp_path).save(ID, [message], lambda text: text.replace("AAAA", "*"))
    assert Transcripts(tmp_path).load(ID) == [
        {"role": "user", "content": [image_block("image/png", "AAAA"), {"type": "text", "text": "*"}]}
    ]


def test_five_hundred_sessions_are_stored_for_their_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "sessions"
    folder.mkdir(parents=True)
    for number in range(500):
        (folder / f"{number:03}.json").write_text("[]")
        os.utime(folder / f"{number:03}.json", (number, number))
    Transcripts(folder).save(ID, [prompt("x")], same)
    assert sorted(names(folder)) == sorted([*(f"{number:03}.json" for number in range(1, 500)), f"{ID}.json"])
    assert (folder / f"{ID}.json").stat().st_mode & 0o777 == 0o600
    Transcripts(tmp_path / "new").save(ID, [prompt("x")], same)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_the_oldest_sessions_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "MOST_SESSIONS", 2)
    for number in range(3):
        name = f"{ID[:-1]}{number}"
        Transcripts(tmp_path).save(name, [prompt("x")], same)
        if (tmp_path / f"{name}.json").exists():
            os.utime(tmp_path / f"{name}.json", (number, number))
    assert names(tmp_path) == [f"{ID[:-1]}1.json", f"{ID[:-1]}2.json"]


def test_secrets_are_taken_out_and_thinking_with_them() -> None:
    message: Message = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "It is s3cret.", "signature": "sig"},
            {"type": "thinking", "thinking": "Fine.", "signature": "sig"},
            {"type": "tool_use", "id": "c", "name": "Write", "input": {"content": ["s3cret"]}},
        ],
    }
    clean = redacted(message, lambda text: text.replace("s3cret", "[redacted]"))
    assert "s3cret" not in str(clean)
    assert [block["type"] for block in clean["content"]] == ["thinking", "tool_use"]  # type: ignore[index, union-attr, call-overload] # as made above


def test_calls_without_results_get_one() -> None:
    called: Message = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "Write", "input": {}}],
    }
    *_, last = settled([prompt("x"), called])
    assert last["role"] == "user"
    assert "'tool_use_id': 'c'" in str(last)
    assert settled([prompt("x")]) == [prompt("x")]
    assert settled([]) == []


def test_where_they_are() -> None:
    assert state_directory({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/dragoman/model_api")
    assert state_directory({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/state/dragoman/model_api")
