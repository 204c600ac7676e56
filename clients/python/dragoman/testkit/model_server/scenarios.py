"""The scenarios every scripted model server knows; pass more to `ModelServer` for your own.

A prompt picks one by its word and may carry arguments: ``MOCK_WRITE path=notes.txt``. Without a
word the model repeats the token of "reply with exactly: TOKEN", or else greets.
"""

from typing import Any

from dragoman.testkit.model_server.script import (
    Answer,
    Delivery,
    Failure,
    Hold,
    Reply,
    Scenario,
    Step,
    Text,
    Thinking,
    Tool,
    Usage,
    call,
    say,
)

DONE = say("Done: {tool_result:-1|nothing came back}")

_FAIRY = "Once upon a time a small model counted to a very large number: "
_LONG = _FAIRY + " ".join(f"word{n:04d}" for n in range(400))
_LINE_200_KB = "0123456789abcdef" * 12800

# Paced, as clients may drop what they had not yet looked at when the connection broke.
_BREAK = Delivery(cut_after=8, pace_ms=20)

_LIMITED = Failure("rate_limited", retry_after_s=1)
_OVERLOADED = Failure("overloaded")
_SERVER_ERROR = Failure("server_error")


def _fine(text: str, **how: Any) -> Reply:
    return Reply((Text(text),), **how)


def _tries(*answers: Answer) -> tuple[Step, ...]:
    """Return one step with these answers, one after another; the last one repeats."""
    return (Step(answers),)


TALK = (
    Scenario("TEXT", "a short text in several deltas", (say("Hello from the scripted model."),)),
    Scenario(
        "THINKING",
        "reasoning, then a text",
        _tries(Reply((Thinking("The user wants a short answer."), Text("A thought-out reply.")))),
    ),
    Scenario(
        "ECHO",
        "size, SHA-256, first and last 40 characters of the prompt",
        (say("bytes={prompt_bytes} sha256={prompt_sha256} head=[{prompt_head:40}] tail=[{prompt_tail:40}]"),),
    ),
    Scenario(
        "RECALL",
        "repeats the first prompt of the session: proves that it was resumed",
        (say("prompts={user_count} word={recall:word|unknown} first=[{user_text:1}]"),),
        {"word": "given in an earlier prompt of the session"},
    ),
    Scenario(
        "UNICODE",
        "text beyond ASCII with a raw U+2028, cut into pieces that split characters",
        _tries(
            Reply(
                (Text("Grüße, 世界 \U0001f980 line\u2028separator \u00a0 end", 3),), delivery=Delivery(packet_bytes=7)
            )
        ),
    ),
    Scenario("LINE", "one line of 200 KB in one delta", (say(_LINE_200_KB, chunk=0),)),
    Scenario("LONG", "a long text in many deltas", (say(_LONG),)),
    Scenario(
        "SLOW",
        "a long text, 20 ms between deltas",
        _tries(_fine(_LONG, delivery=Delivery(pace_ms=20))),
    ),
    Scenario(
        "SECRET_TEXT",
        "says the secret it was given",
        (say("The value is {arg:secret|missing}, remember it."),),
        {"secret": "the text to repeat"},
    ),
)

TOOLS = (
    Scenario(
        "WRITE",
        "writes a file, then reports",
        (
            call(
                Tool(
                    "write",
                    {
                        "path": "{cwd|.}/{arg:path|hello.txt}",
                        "content": "{arg:content|hello from the scripted model}\n",
                    },
                ),
                saying="I will write that file.",
            ),
            DONE,
        ),
        {"path": "file below the working directory", "content": "its text"},
    ),
    Scenario(
        "READ",
        "reads a file, then reports",
        (call(Tool("read", {"path": "{cwd|.}/{arg:path|hello.txt}"})), DONE),
        {"path": "file below the working directory"},
    ),
    Scenario(
        "READ_BESIDE_INSTRUCTIONS",
        "reads a file beside the run's instructions, then reports",
        (call(Tool("read", {"path": "{beside:instructions|.}/{arg:path|NOTES.md}"})), DONE),
        {"path": "file below the directory of the instructions"},
    ),
    Scenario(
        "READ_BESIDE_SKILL",
        "reads a file of a skill that went by prompt, then reports",
        (call(Tool("read", {"path": "{beside:skill|.}/{arg:path|assets/word.txt}"})), DONE),
        {"path": "file below the directory of the skill"},
    ),
    Scenario(
        "TOOL_FAIL",
        "reads a file that is not there, then carries on",
        (
            call(Tool("read", {"path": "{cwd|.}/no/such/file.txt"})),
            say("That failed: {tool_result:-1|?}"),
        ),
    ),
    Scenario(
        "SHELL",
        "runs a shell command, then reports",
        (call(Tool("shell", {"command": "{arg:command|echo shell-ran}"})), DONE),
        {"command": 'the command, in double quotes: command="ls -l"'},
    ),
    Scenario(
        "SHELL_FAIL",
        "runs a command that exits 3, then carries on",
        (call(Tool("shell", {"command": "echo before; echo oops >&2; exit 3"})), DONE),
    ),
    Scenario(
        "SLEEP",
        "runs a shell command that sleeps for long: for stopping inside a tool",
        (call(Tool("shell", {"command": "echo sleeping; sleep {arg:seconds|300}"})), DONE),
        {"seconds": "how long; 300 if absent"},
    ),
    Scenario(
        "BACKGROUND",
        "starts a shell command in the background and answers at once, while it runs",
        (call(Tool("background", {"command": "sleep {arg:seconds|1}; echo background-done"})), say("It runs.")),
        {"seconds": "how long it runs; 1 if absent"},
    ),
    Scenario(
        "SECRET_TOOL",
        "prints an environment variable in a tool, then repeats the output",
        (
            call(Tool("shell", {"command": "printenv {arg:name|HOME}"})),
            say("The variable holds {tool_result:-1|nothing}."),
        ),
        {"name": "the environment variable"},
    ),
    Scenario(
        "PARALLEL",
        "calls two tools in one turn",
        (
            call(
                Tool("shell", {"command": "{arg:first|echo first}"}),
                Tool("shell", {"command": "{arg:second|echo second}"}),
                saying="Both at once.",
            ),
            say("Two results: {tool_result:1|?} and {tool_result:2|?}"),
        ),
        {"first": "first command", "second": "second command"},
    ),
    Scenario(
        "PARALLEL_WRITE",
        "writes two files in one turn: two permission questions at once",
        (
            call(
                Tool("write", {"path": "{cwd|.}/one.txt", "content": "1\n"}),
                Tool("write", {"path": "{cwd|.}/two.txt", "content": "2\n"}),
            ),
            say("Two results: {tool_result:1|?} and {tool_result:2|?}"),
        ),
    ),
    Scenario(
        "LOOP",
        "calls a tool at every turn, for ever: ends by a turn limit",
        (call(Tool("shell", {"command": "echo round"})),),
    ),
    Scenario(
        "ASK",
        "asks the user a multiple-choice question, then repeats the answer",
        (
            call(
                Tool(
                    "ask",
                    {
                        "questions": [
                            {
                                "question": "Which colour?",
                                "header": "Colour",
                                "multiSelect": False,
                                "options": [
                                    {"label": "Red", "description": "like a fire"},
                                    {"label": "Blue", "description": "like a lake"},
                                ],
                            }
                        ]
                    },
                )
            ),
            say("You answered: {tool_result:-1|nothing}"),
        ),
    ),
    Scenario(
        "SKILL",
        "uses a skill, then says the secret word its text gives after 'secret word is'",
        (
            call(Tool("skill", {"name": "{arg:skill|demo}"})),
            say("The secret word is {after:secret word is|unknown}."),
        ),
        {"skill": "name of the skill"},
    ),
    Scenario(
        "SUBAGENT",
        "starts a sub-agent with a script of its own, then reports",
        (call(Tool("subagent", {"prompt": "{arg:task|MOCK_SHELL please}"})), DONE),
        {"task": 'prompt of the sub-agent, in double quotes: task="MOCK_TEXT now"'},
    ),
    Scenario(
        "SUBAGENTS",
        "starts two sub-agents in one turn, then reports",
        (
            call(
                Tool("subagent", {"prompt": "{arg:first|MOCK_TEXT one}"}),
                Tool("subagent", {"prompt": "{arg:second|MOCK_TEXT two}"}),
            ),
            say("{tool_count} reports."),
        ),
        {"first": "prompt of one, in double quotes", "second": "prompt of the other"},
    ),
    Scenario(
        "UNKNOWN_TOOL",
        "calls a tool that the agent does not offer",
        (call(Tool("NoSuchTool", {"question": "{prompt_head:20}"})), DONE),
    ),
)

FAULTS = (
    Scenario("401", "authentication failure, always", _tries(Failure("unauthorized"))),
    Scenario(
        "429_ONCE",
        "429 with retry-after 1 s, then well",
        _tries(_LIMITED, _fine("Recovered from the rate limit.")),
    ),
    Scenario(
        "429_TWICE",
        "429 with retry-after 1 s twice, then well",
        _tries(_LIMITED, _LIMITED, _fine("Recovered from the rate limit.")),
    ),
    Scenario("429", "429 with retry-after 1 s, always", _tries(_LIMITED)),
    Scenario("429_LONG", "429 with retry-after 120 s, always", _tries(Failure("rate_limited", retry_after_s=120))),
    Scenario(
        "QUOTA",
        "429, what a subscription or plan includes is used up, always",
        _tries(Failure("quota", retry_after_s=3600)),
    ),
    Scenario("529", "overloaded (529 or the vendor's equal), always", _tries(_OVERLOADED)),
    Scenario("529_ONCE", "overloaded once, then well", _tries(_OVERLOADED, _fine("Recovered."))),
    Scenario("500", "server error, always", _tries(_SERVER_ERROR)),
    Scenario("500_ONCE", "server error once, then well", _tries(_SERVER_ERROR, _fine("Recovered."))),
    Scenario("400", "request refused as malformed, always", _tries(Failure("malformed"))),
    Scenario("OVERFLOW", "the prompt is longer than the context", _tries(Failure("overflow"))),
    Scenario("NO_CREDIT", "no credit left", _tries(Failure("no_credit"))),
    Scenario("NO_MODEL", "the model is unknown", _tries(Failure("no_model"))),
    Scenario("REFUSAL", "the model declines", _tries(_fine("I cannot help with that.", stop="refusal"))),
    Scenario(
        "MAX_TOKENS",
        "the answer stops at the token limit",
        _tries(_fine("This answer ends in the mid", stop="max_tokens")),
    ),
    Scenario("CUT", "the connection breaks in mid-stream, always", _tries(_fine(_LONG, delivery=_BREAK))),
    Scenario(
        "CUT_ONCE",
        "the connection breaks in mid-stream once, then well",
        _tries(_fine(_LONG, delivery=_BREAK), _fine("Recovered from the cut.")),
    ),
    Scenario(
        "CUT_END",
        "the stream ends properly but too early, always",
        _tries(_fine(_LONG, delivery=Delivery(cut_after=8, cut="end", pace_ms=20))),
    ),
    Scenario(
        "STREAM_ERROR",
        "an overload error inside the stream, always",
        _tries(Failure("overloaded", after=_fine("Before the error."))),
    ),
    Scenario(
        "STALL",
        "nothing is sent, not even a status, until gate 'stall' is released",
        _tries(_fine("After the stall.", delivery=Delivery(hold=Hold()))),
    ),
    Scenario(
        "STALL_MID",
        "the stream falls silent after some deltas, until gate 'stall' is released",
        _tries(
            _fine(
                "Before the stall. After the stall.",
                usage=Usage(input=410),
                delivery=Delivery(hold=Hold(after_events=4)),
            )
        ),
    ),
)

#: Answers a prompt that names no script; a server's own script of this name replaces it.
DEFAULT = Scenario("DEFAULT", "repeats 'reply with exactly: TOKEN', or greets", (say("{exactly|Hello.}"),))

SCENARIOS: tuple[Scenario, ...] = (*TALK, *TOOLS, *FAULTS)
