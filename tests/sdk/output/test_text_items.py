"""Items of text and thinking: each is emitted once, however often an agent repeats it, and ends where it ends."""

from collections.abc import Callable, Iterable, Iterator

from dragoman.sdk.parsing import TextItems
from dragoman.v1 import event_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st


def shown(events: Iterable[pb.AgentEvent]) -> list[tuple[str, str, str]]:
    """Return of each event its item, what it does with it, and the words."""
    found: list[tuple[str, str, str]] = []
    for event in events:
        piece = event.text if event.HasField("text") else event.thinking
        found.append((piece.item_id, piece.WhichOneof("content") or "end", piece.delta or piece.whole))
    return found


def screen(events: Iterable[pb.AgentEvent]) -> dict[str, str]:
    """Return the items as a client shows them."""
    items: dict[str, str] = {}
    for item_id, what, words in shown(events):
        if what != "end":
            items[item_id] = (items.get(item_id, "") if what == "delta" else "") + words
    return items


def test_pieces_are_emitted_and_a_whole_only_where_they_did_not_give_it() -> None:
    texts = TextItems()
    assert shown(texts.delta("a", "one ")) == [("a", "delta", "one ")]
    assert shown(texts.delta("a", "two")) == [("a", "delta", "two")]
    assert shown(texts.whole("a", "one two")) == [("a", "end", "")]
    assert shown(texts.whole("b", "three", "thinking")) == [("b", "whole", "three"), ("b", "end", "")]
    assert list(texts.delta("c", "x")) != []
    assert shown(texts.whole("c", "y")) == [("c", "whole", "y"), ("c", "end", "")]
    assert texts.last_text == "y"


def test_the_last_text_is_no_thought() -> None:
    texts = TextItems()
    assert [*texts.whole("a", "an answer"), *texts.whole("b", "a thought", "thinking")] != []
    assert texts.last_text == "an answer"


def test_what_says_nothing_is_no_event() -> None:
    texts = TextItems()
    nothing = [*texts.delta("a", ""), *texts.delta("", "x"), *texts.whole("a", ""), *texts.piece(""), *texts.pause()]
    assert [*nothing, *texts.end("a"), *texts.end_all(), *texts.retract("a")] == []
    assert texts.last_text == ""


def test_of_all_words_so_far_only_the_new_ones_are_emitted() -> None:
    texts = TextItems()
    events = [event for words in ("", "a", "a", "ab", "a", "abc") for event in texts.so_far("i", words, "thinking")]
    assert shown(events) == [("i", "delta", "a"), ("i", "delta", "b"), ("i", "delta", "c")]
    assert all(event.HasField("thinking") for event in events)


def test_an_item_that_has_ended_begins_anew_or_is_over_for_good() -> None:
    for once, expected in ((False, [("a", "delta", "y")]), (True, [])):
        texts = TextItems(once=once)
        assert shown([*texts.delta("a", "x"), *texts.end("a")]) == [("a", "delta", "x"), ("a", "end", "")]
        assert shown(texts.delta("a", "y")) == expected
        assert shown(texts.whole("a", "y")) == ([("a", "end", "")] if expected else [])


def test_items_without_a_name_go_on_until_something_else_comes() -> None:
    texts = TextItems()
    events = [*texts.piece("a"), *texts.piece("b"), *texts.piece("t", "thinking"), *texts.pause(), *texts.pause()]
    events += [*texts.piece("t", "thinking"), *texts.complete("c"), *texts.piece("d")]
    assert shown(events) == [
        *[("text-1", "delta", "a"), ("text-1", "delta", "b"), ("text-1", "end", "")],
        *[("thinking-2", "delta", "t"), ("thinking-2", "end", "")],
        *[
            ("thinking-3", "delta", "t"),
            ("thinking-3", "end", ""),
            ("text-4", "whole", "c"),
            ("text-5", "delta", "d"),
        ],
    ]
    assert texts.last_text == "d"


def test_what_a_broken_call_wrote_is_retracted_open_or_ended() -> None:
    texts = TextItems()
    events = [*texts.delta("a", "x"), *texts.end("a"), *texts.delta("b", "y", "thinking")]
    assert texts.open() == ["b"]
    assert shown(texts.retract("a", "b", "c")) == [
        *[("a", "whole", ""), ("a", "end", ""), ("b", "whole", ""), ("b", "end", "")],
    ]
    assert texts.open() == []
    assert len(events) == 3


def test_items_belong_to_the_agent_that_writes_them() -> None:
    texts = TextItems()
    assert len([*texts.delta("a", "x", owner="nested"), *texts.delta("b", "y")]) == 2
    assert (texts.open("nested"), texts.open(""), texts.open()) == (["a"], ["b"], ["a", "b"])


IDS = st.sampled_from(["a", "b", "c"])
WORDS = st.text("xyz ", max_size=4)
KINDS = st.sampled_from(["text", "thinking"])
Step = Callable[[TextItems], Iterator[pb.AgentEvent]]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda i, w, k: lambda t: t.delta(i, w, k), IDS, WORDS, KINDS),
    st.builds(lambda i, w, k: lambda t: t.so_far(i, w, k), IDS, WORDS, KINDS),
    st.builds(lambda i, w, k: lambda t: t.whole(i, w, k), IDS, WORDS, KINDS),
    st.builds(lambda w, k: lambda t: t.piece(w, k), WORDS, KINDS),
    st.builds(lambda w, k: lambda t: t.complete(w, k), WORDS, KINDS),
    st.builds(lambda i: lambda t: t.end(i), IDS),
    st.builds(lambda i: lambda t: t.retract(i), IDS),
    st.just(lambda t: t.pause()),
    st.just(lambda t: t.end_all()),
)


@given(st.lists(STEPS, max_size=30), st.booleans())
def test_whatever_comes_in_whatever_order_items_stay_whole(steps: list[Step], once: bool) -> None:
    texts = TextItems(once=once)
    events = [event for step in steps for event in step(texts)]
    events += texts.end_all()
    kinds: dict[str, str] = {}
    is_open: set[str] = set()
    for event in events:
        kind = event.WhichOneof("body") or ""
        ((item_id, what, _),) = shown([event])
        if once:
            assert kinds.setdefault(item_id, kind) == kind, "an item keeps its kind"
        if what == "delta":
            is_open.add(item_id)
        elif what == "end":
            is_open.discard(item_id)
    assert is_open == set(), "whatever had pieces has ended"
    assert texts.open() == []


@given(st.lists(WORDS, max_size=10))
def test_pieces_and_their_sum_so_far_show_the_same(pieces: list[str]) -> None:
    by_piece, by_sum, so_far = TextItems(), TextItems(), ""
    left: list[pb.AgentEvent] = []
    right: list[pb.AgentEvent] = []
    for piece in pieces:
        so_far += piece
        left += by_piece.delta("a", piece)
        right += by_sum.so_far("a", so_far)
    assert shown(left) == shown(right)
    assert screen(left).get("a", "") == so_far == by_piece.last_text
