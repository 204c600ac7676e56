"""What to do about a failure, in the words that the failures of all agents have for it.

What is an agent's own stands with it: how to log in is ``AgentSpec.login_hint``.
"""

from typing import Final

WAIT: Final = "Wait a while."
CHECK_NETWORK: Final = "See whether the model's service can be reached."
OTHER_MODEL: Final = "Choose another model."
REPHRASE: Final = "Rephrase the task, or choose another model."
SHORTER_PROMPT: Final = "Start a new session, or send a shorter prompt."
SHORTER_ANSWER: Final = "Ask for a shorter answer."
NEW_SESSION: Final = "A new session is started."

ANSWER_CUT: Final = f"The model's answer was cut at its limit of output tokens. {SHORTER_ANSWER}"
"""The whole message of a failure."""
