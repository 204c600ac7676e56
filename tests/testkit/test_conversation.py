"""Reading a prompt and filling the placeholders of a script from it."""

import hashlib

import pytest
from dragoman.testkit.model_server.apis.anthropic import read_conversation
from dragoman.testkit.model_server.conversation import Conversation, argument, fill, fill_text

from .asking import asked, results, user

TALK = Conversation(
    user_texts=("first word=plover", 'MOCK_X path=a.txt task="two words"'),
    later_texts=("noise", "The secret word is `heliotrope`."),
    tool_results=("one", "two"),
    rounds=1,
    prompt='MOCK_X path=a.txt task="two words"',
    system="- Primary working directory: /home/two words/x\n- Shell: bash",
    model="m-1",
)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{cwd}/{arg:path|none}", "/home/two words/x/a.txt"),
        ("{arg:task}", "two words"),
        ("{arg:absent|fallback}", "fallback"),
        ("{arg:absent}", ""),
        ("{recall:word}", "plover"),
        ("{user_text:1} {user_count}", "first word=plover 2"),
        ("{user_text:9|none}", "none"),
        ("{tool_result:1} {tool_result:-1} {tool_result} {tool_count}", "one two two 2"),
        ("{after:secret word is}", "heliotrope"),
        ("{after:nothing like it|unknown}", "unknown"),
        ("{prompt_head:6}|{prompt_tail:6}", 'MOCK_X|words"'),
        ("{prompt_bytes} {prompt_sha256}", f"34 {hashlib.sha256(TALK.prompt.encode()).hexdigest()}"),
        ("{model} {rounds}", "m-1 1"),
        ('{"json": {"stays": 1}} {unknown:name}', '{"json": {"stays": 1}} {unknown:name}'),
    ],
)
def test_placeholders(template: str, filled: str) -> None:
    assert fill_text(template, TALK) == filled


def test_a_working_directory_with_words_about_it() -> None:
    talk = Conversation(prompt="", system="Working directory: /home/two words/x (tools and deliverables).\nMore")
    assert fill_text("{cwd}/a", talk) == "/home/two words/x/a"


def test_filled_text_is_not_filled_again() -> None:
    talk = Conversation(prompt="MOCK_X path={model}", model="m-1")
    assert fill_text("{arg:path}", talk) == "{model}"


def test_filling_goes_to_any_depth_and_leaves_the_rest_alone() -> None:
    assert fill({"a": ["{model}", 1, None, {"b": ("{rounds}", True)}]}, TALK) == {
        "a": ["m-1", 1, None, {"b": ["1", True]}]
    }


def test_an_argument_is_a_word_of_its_own() -> None:
    assert argument("xpath=no path=yes", "path") == "yes"
    assert argument("my-path=no", "path") is None
    assert argument('path=""', "path") == ""


def test_the_last_word_chooses_and_only_later_results_count() -> None:
    talk = read_conversation(asked([user("MOCK_ONE"), results("old"), user("MOCK_TWO"), results("a", "b")]))
    assert (talk.word, talk.tool_results, talk.rounds, talk.prompt_number) == ("TWO", ("a", "b"), 1, 2)


def test_a_prompt_in_the_same_message_as_reminders() -> None:
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "<system-reminder>x"}, {"type": "text", "text": "hi"}],
    }
    talk = read_conversation(asked([message, {"role": "system", "content": "working directory: /elsewhere"}]))
    assert (talk.prompt, talk.user_texts) == ("hi", ("hi",))
    assert "/elsewhere" in talk.system


@pytest.mark.parametrize("body", [{}, {"messages": None}, {"messages": [{"role": "user"}]}, {"messages": [{}]}])
def test_odd_bodies_read_as_empty(body: dict[str, object]) -> None:
    talk = read_conversation(body)
    assert (talk.prompt, talk.rounds, talk.word) == ("", 0, "")
