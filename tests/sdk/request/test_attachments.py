"""Files that go with a prompt: what is wrong with them, field by field, and how they are laid out."""

import os
from pathlib import Path
from typing import Any

import pytest
from dragoman.protocol.errors import DragomanError, Reason
from dragoman.sdk import AdapterInfo, capabilities
from dragoman.sdk._request import attachments
from dragoman.sdk._request.attachments import (
    AttachmentError,
    bytes_of,
    lay_out_attachments,
    refuse_images,
    wrong_attachments,
)
from dragoman.sdk._serving.sending import refuse_undeclared
from dragoman.v1 import adapter_pb2 as api
from dragoman.v1 import event_pb2 as pb

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32


def file(name: str = "a.txt", **fields: Any) -> api.Attachment:
    return api.Attachment(name=name, **(fields or {"content": b"x"}))


def wrong(*files: api.Attachment) -> list[tuple[str, str]]:
    return [(item.path, item.description) for item in wrong_attachments(files)]


@pytest.mark.parametrize("name", ["a", "A b_c-d.txt", "9"])
def test_good_names(name: str) -> None:
    assert wrong(file(name)) == []


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "a/b", "../a", "é", "a\n"])
def test_bad_names(name: str) -> None:
    assert wrong(file(name)) == [
        ("attachments[0].name", "must be a letter or digit, then letters, digits, blanks and any of . _ -")
    ]


def test_names_differ_in_more_than_their_case() -> None:
    message = "must differ from those before, in more than upper and lower case"
    assert wrong(file("a"), file("b"), file("A")) == [("attachments[2].name", message)]


@pytest.mark.parametrize(
    ("media_type", "is_wrong"),
    [("text/plain", False), ("application/vnd.a+json", False), ("text", True), ("text/plain; charset=a", True)],
)
def test_media_types_have_no_parameters(media_type: str, is_wrong: bool) -> None:
    message = "must be a media type without parameters, such as text/plain"
    expected = [("attachments[0].media_type", message)] if is_wrong else []
    assert wrong(file(content=b"x", media_type=media_type)) == expected


def test_content_and_images_have_bounds_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MOST_CONTENT_BYTES", len(PNG))
    image = tmp_path / "image"
    image.write_bytes(PNG)
    by_path = file("b", path=str(image), media_type="image/png")
    assert wrong(file("a", content=b"x" * len(PNG)), by_path) == []
    assert [path for path, _ in wrong(file("a", content=b"x"), file("b", content=b"x" * len(PNG)))] == ["attachments"]
    ((_, message),) = wrong(by_path, file("c", path=str(image), media_type="image/png"))
    assert message.endswith("MiB of images together")


def test_an_image_is_one() -> None:
    assert wrong(file(content=PNG, media_type="image/png")) == []
    assert wrong(file(content=b"GIF89a", media_type="image/png")) == [
        ("attachments[0].content", "is no image/png"),
    ]


def test_a_file_has_a_source() -> None:
    assert wrong(api.Attachment(name="a")) == [("attachments[0].content", "must be given, or path")]


def test_a_path_is_that_of_a_file_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"xx")
    large.write_bytes(b"x" * 5)
    (tmp_path / "link").symlink_to(small)
    monkeypatch.setattr(attachments, "LARGEST_FILE", 4)
    found = {
        path: [words for _, words in wrong(file(path=path))]
        for path in ("a", f"{small}\0", f"{tmp_path}/none", f"{tmp_path}/link", str(tmp_path), str(large), str(small))
    }
    assert list(found.values()) == [
        ["must be an absolute path"],
        ["must be an absolute path"],
        ["cannot be used: No such file or directory"],
        ["must be a regular file, and no link"],
        ["must be a regular file, and no link"],
        ["must not have more than 0 MiB"],
        [],
    ]
    assert bytes_of([file(path=str(small)), file("b", content=b"yyy")]) == 5
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert wrong(file(path=str(small))) == [("attachments[0].path", "may not be read by the adapter")]


def test_they_are_laid_out_for_this_user_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"of a path")
    (tmp_path / "run").mkdir()
    files = [file("a", content=b"held"), file("b", path=str(source)), file("c", content=PNG, media_type="image/png")]
    laid_out = lay_out_attachments(files, tmp_path / "run")
    assert [(each.name, each.size, each.path.read_bytes()) for each in laid_out] == [
        ("a", 4, b"held"),
        ("b", 9, b"of a path"),
        ("c", len(PNG), PNG),
    ]
    assert {each.path.stat().st_mode & 0o777 for each in laid_out} == {0o600}


def test_what_grew_since_it_was_checked_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 5)
    monkeypatch.setattr(attachments, "LARGEST_FILE", 5)
    for place, most in (("one", None), ("two", 5)):
        (tmp_path / place).mkdir()
        assert lay_out_attachments([file("a", path=str(source))], tmp_path / place, most)[0].size == 5
    with pytest.raises(AttachmentError, match="there is no room"):
        lay_out_attachments([file("b"), file("c", path=str(source))], tmp_path / "one", 5)
    source.write_bytes(b"x" * 6)
    (tmp_path / "run").mkdir()
    with pytest.raises(AttachmentError, match="has more than"):
        lay_out_attachments([file("a", path=str(source))], tmp_path / "run")


def info(*features: pb.Feature.ValueType) -> AdapterInfo:
    return AdapterInfo(
        type="agent",
        label="Agent",
        version="1",
        configuration_doc="",
        config_schema={},
        capabilities=capabilities(*features),
    )


def test_images_are_for_agents_that_take_some() -> None:
    image = file("b", content=PNG, media_type="image/png")
    refuse_images([file(), image], info(pb.FEATURE_IMAGES))
    refuse_images([file()], info())
    with pytest.raises(DragomanError, match="Agent takes no images") as caught:
        refuse_images([file(), image], info())
    assert caught.value.reason is Reason.NOT_SUPPORTED
    assert [item.path for item in caught.value.violations] == ["attachments[1].media_type"]


@pytest.mark.parametrize(
    ("mode", "features", "path", "message"),
    [
        (pb.INPUT_MODE_STEER, [pb.FEATURE_QUEUE], "mode", "takes no input in its present turn; queue it, or start"),
        (pb.INPUT_MODE_UNSPECIFIED, [pb.FEATURE_STEER], "mode", "has one turn in each run"),
        (pb.INPUT_MODE_QUEUE, [pb.FEATURE_STEER], "mode", "has one turn in each run; start another run afterwards"),
        (pb.INPUT_MODE_STEER, [pb.FEATURE_STEER], "attachments", "has no attachments; leave it out"),
    ],
)
def test_an_input_that_an_adapter_does_not_take(
    mode: pb.InputMode.ValueType, features: list[pb.Feature.ValueType], path: str, message: str
) -> None:
    request = api.SendRequest(mode=mode, attachments=[file()])
    with pytest.raises(DragomanError, match=message) as caught:
        refuse_undeclared(info(*features), request)
    assert caught.value.reason is Reason.NOT_SUPPORTED
    assert [item.path for item in caught.value.violations] == [path]
    refuse_undeclared(info(*features, pb.FEATURE_STEER, pb.FEATURE_QUEUE, pb.FEATURE_ATTACHMENTS), request)
