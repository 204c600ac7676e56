"""Texts of agents, and of the services behind them, that identify a failure. Data for ``failures``.

Each pattern was seen in an agent's output or its source. Gaps are bounded and stay within a line, so that no
text makes a search slow, and no two unrelated sentences make one match.
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

from dragoman.v1 import event_pb2 as pb


class LazyPattern:
    """A regular expression, compiled when first used: the patterns take long, and most runs do not fail."""

    def __init__(self, *alternatives: str) -> None:
        self._text = "|".join(alternatives)

    @cached_property
    def search(self) -> Callable[[str], re.Match[str] | None]:
        """Look for it in a text."""
        return re.compile(self._text, re.IGNORECASE | re.MULTILINE).search


# What stands for an id between "session" and "not found": quoted, or with a digit, dash or underscore in it.
_ID: Final = r"(?:[\"'`][^\"'`\n]{1,128}[\"'`]|(?=[^\s\"'`]{0,40}[0-9_-])[^\s\"'`]{1,128}|file|transcript|history)"
_THING: Final = r"\b(?:session|thread|conversation|chat|checkpoint|resume)s?(?:[ _-]?id(?:entifier)?)?\b"
_NOT_FOUND: Final = r"(?:was |is |could )?not (?:be )?found\b"

REFRESH_TOKENS: Final = (
    (
        "refresh_token_reused",
        LazyPattern(r"\brefresh_token_reused\b|\brefresh token [^\n]{0,20}\balready (?:been )?used\b"),
    ),
    ("refresh_token_expired", LazyPattern(r"\brefresh_token_expired\b|\brefresh token (?:has |is |was )?expired\b")),
    (
        "refresh_token_invalidated",
        LazyPattern(
            r"\brefresh_token_invalidated\b",
            r"\brefresh token (?:is |was |has been )?(?:revoked|invalidated|invalid|rejected)\b",
        ),
    ),
)
"""Why a login could not be renewed, by the code of the failure, which is the same for all agents."""

UNKNOWN_SESSION: Final = LazyPattern(
    r"\bno conversation found with session id",
    r"\b(?:unknown|invalid) (?:session|thread|conversation|chat|checkpoint)(?:[ _-]?id(?:entifier)?)?\b",
    rf"{_THING}(?: (?:with|for|named))?(?: id)?[:=]?\s?(?:{_ID}[:,]? )?{_NOT_FOUND}",
    r"\bnot a valid uuid\b|\bis not a uuid\b",
    r"--resume requires a valid session|\bdoes not match any session title\b",
    r"\bmissing rollout path\b|\bno rollout found for thread\b",
    r"\b(?:cannot|can't|could not|couldn't|failed to|unable to|error) resum(?:e|ing)\b",
    r"\bresource not found\b[^\n]{0,200}[/\\]session[/\\]",
    r"\bno (?:previous |saved )?(?:session|conversation)s?(?: found| exists?| matching| with)\b",
    r"\bno session, task, or name matched\b",
    r"^(?:error: )?no (?:session|conversation)\.?$",
    r"\bNotFoundError\b(?![^\n]{0,120}\bmodel\b)",
    r"\bprevious_message_id\b",
)
"""A session to resume is not there."""

NO_UNKNOWN_SESSION: Final = LazyPattern(
    r"\bsession\b[^\n]{0,80}\b(?:already in use|already exists)\b",
    r"\b(?:unknown|invalid) session (?:state|event|type|option|mode|update|storage|token|cookie|key|config\w*)\b",
)
"""Near misses of the above, whatever else the text says."""

RULES: Final[tuple[tuple[pb.FailureKind.ValueType, LazyPattern], ...]] = (
    (
        pb.FAILURE_KIND_MAX_TURNS,
        LazyPattern(
            r"\berror_max_turns\b|\bFatalTurnLimitedError\b",
            r"\b(?:reached|exceeded|hit)\b[^\n]{0,30}\bmax(?:imum)?[ _](?:number of |session )?turns\b",
            r"\bmax(?:imum)?[ _](?:number of |session )?turns\b[^\n]{0,20}\b(?:reached|exceeded|hit)\b",
        ),
    ),
    (
        pb.FAILURE_KIND_OUTPUT_LIMIT,
        LazyPattern(
            r"\bincomplete\b[^\n]{0,60}\bmax_(?:output_)?tokens\b",
            r"\b(?:stop|finish)_?reason\\?\"?\s?[:=]\s?\\?\"?(?:length|max_(?:output_)?tokens)\b",
            r"\bexceeded the (?:\d{1,9} )?output token maximum\b",
            r"\bresponse (?:was |is )?(?:truncated|cut off)\b[^\n]{0,60}\b(?:output|token) limits?\b",
        ),
    ),
    (
        pb.FAILURE_KIND_CONTEXT_OVERFLOW,
        LazyPattern(
            r"\b(?:prompt|input|request|conversation|message|context)s? (?:is |are )?too (?:long|large)\b",
            r"\bcontext[ _](?:length|window|limit)\b[^\n]{0,40}\b(?:exceed|full|too )",
            r"\bcontext_length_exceeded\b|\brequest_too_large\b|\bmaximum context length\b|\bContextOverflowError\b",
            r"\bexceed\w* (?:the |your )?(?:model'?s? )?(?:maximum |max )?(?:context|(?:number of |input )tokens)\b",
        ),
    ),
    (
        pb.FAILURE_KIND_MODEL_NOT_FOUND,
        LazyPattern(
            r"\bmodel_not_found\b|\bProviderModelNotFoundError\b",
            r"\b(?:unknown|invalid|unrecognized|unsupported) model\b(?! (?:provider|output|response))",
            r"\bmodels?\b(?! provider)[^\n.;]{0,80}\b(?:not found|does not exist|doesn't exist)\b",
            r"\bmodels?\b[^\n.;]{0,80}\bis not (?:supported|available)\b",
            r"\b(?:no such|not a valid) model\b|\bissue with the selected model\b",
            r"\bnot_found_error\b[^\n]{0,120}\bmodel\b|\bdo(?:es)? not have access to (?:the |this )?model\b",
        ),
    ),
    (
        pb.FAILURE_KIND_AUTH_REQUIRED,
        LazyPattern(
            r"\bnot (?:logged|signed) in\b|\bplease (?:run /login|(?:log|sign) ?in)\b|\blog ?in (?:is )?required\b",
            r"\bauthentication[ _](?:error|failed|required|is required)\b|\bnot able to authenticate\b",
            r"\bnot authenticated\b|\bunauthenticated\b|\bre-?authenticate\b|\binvalid auth method\b",
            r"\bno auth(?:entication)?(?: type| method| information| credentials?)(?: is)? (?:found|set|selected)\b",
            r"\b(?:invalid|incorrect|wrong|missing|expired|revoked|no)[ _](?:x-)?api[- _]?keys?\b|\bno_api_key\b",
            r"\bapi[ _]?keys?\b[^\n]{0,60}\b(?:not (?:found|valid|set|configured)|invalid|missing|expired|revoked)\b",
            r"\b(?:set|specify|provide|configure|check) (?:the |your |an )?(?:[A-Z_]*API_KEY|api key)\b",
            r"\bmissing environment variable: .?[A-Z_]*(?:KEY|TOKEN)\b|\bmissing bearer\b|\bpermission_error\b",
            r"\b(?:oauth|access|auth|refresh|provider)[ _]?tokens?\b[^\n]{0,40}\b(?:expired|revoked|invalid)\b",
            r"\brefresh token (?:was|has been|is) already (?:been )?used\b",
            r"\brefresh_token_(?:reused|expired|invalidated)\b|\bsession (?:has )?expired\b",
        ),
    ),
    (
        pb.FAILURE_KIND_QUOTA_EXCEEDED,
        LazyPattern(
            r"\binsufficient_quota\b|\bbilling_hard_limit_reached\b|\busage_limit_reached\b|\bbilling_error\b",
            r"\b(?:hit|reached|exceeded)\b[^\n]{0,20} (?:usage|session|weekly|monthly|daily|spending|plan) limits?\b",
            r"\b(?:usage|session|weekly|monthly|daily|spending|[0-9]-hour) limits? (?:was |has been )?reached\b",
            r"\b(?:hit|reached) your limit\b|\bexceeded your (?:current |monthly |daily )?quota\b",
            r"\bquota (?:was |has been |is )?(?:exceeded|exhausted|reached|will reset)\b(?![^\n]{0,80}\bper ?minute)",
            r"\bexhausted your (?:capacity|(?:daily |monthly )?quota)\b|\bout of (?:credits?|quota|usage)\b",
            r"\bcredit balance is too low\b|\binsufficient (?:credits?|funds|balance)\b|\bno credits left\b",
        ),
    ),
    (
        pb.FAILURE_KIND_MODEL_REFUSED,
        LazyPattern(
            r"\bviolates? (?:our|the) (?:usage|content) polic|\bcontent_filter\b|\bcontent[ _]policy[ _]violation\b",
            r"\bstop_reason\"?\s*[:=]\s*\"?refusal\b|\bfinish_?reason\"?\s*[:=]\s*\"?(?:safety|prohibited_content)\b",
            r"\b(?:blocked|flagged) (?:by|for|due to)\b[^\n]{0,40}\b(?:safety|policy|content filter|moderation)\b",
        ),
    ),
    (
        pb.FAILURE_KIND_INVALID_CONFIG,
        LazyPattern(r"\binvalid_request_error\b|\bINVALID_ARGUMENT\b|\bbad_request_error\b|\bBadRequestError\b"),
    ),
    (
        pb.FAILURE_KIND_RATE_LIMITED,
        LazyPattern(
            r"\brate[ _-]?limit(?:s|ed|ing)?(?:[ _]?(?:error|exceeded|reached))?\b|\btoo many requests\b",
            r"\brequests per (?:minute|second|day)\b|\bresource_exhausted\b|\bresource has been exhausted\b",
            r"\bquota exceeded\b|\bthrottl(?:ed|ing)",
        ),
    ),
    (
        pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
        LazyPattern(
            r"\boverloaded(?:_error)?\b|\b(?:temporarily|currently) (?:unavailable|overloaded)\b|\bhigh demand\b",
            r"\b(?:internal server |server |server_)error\b|\bbad gateway\b|\bservice[ _]unavailable\b",
            r"\bthe server had an error\b",
            r"\bgateway time-?out\b|\bupstream (?:error|connect error|request timeout)\b|\bat capacity\b",
        ),
    ),
    (
        pb.FAILURE_KIND_NETWORK,
        LazyPattern(
            r"\bE(?:CONNREFUSED|CONNRESET|CONNABORTED|TIMEDOUT|NOTFOUND|HOSTUNREACH|NETUNREACH|AI_AGAIN|PIPE)\b",
            r"\bfetch failed\b|\bsocket hang up\b|\bnetwork (?:error|is unreachable)\b|\bgetaddrinfo\b",
            r"\bconnection (?:error|failed|refused|reset|closed|aborted|timed out|lost)\b",
            r"\b(?:unable to|could not|cannot|failed to) connect\b",
            r"\bstream (?:disconnected|closed|ended)\b|\bcould not resolve host\b|\bname resolution\b",
            r"^terminated$",  # Node.js, of an answer that was cut
            r"\berror sending request\b|\bcertificate (?:has expired|verify failed)\b|\bself[- ]signed certificate\b",
            r"\b(?:request|connection) timed out\b|\bpremature close\b|\bother side closed\b|\bUND_ERR_[A-Z_]+",
            r"\berror (?:decoding|reading) (?:the |a )?(?:response )?body\b|\btcp connect error\b|\bdns error\b",
        ),
    ),
)
"""Failure kinds and their patterns. The first that matches decides: lasting kinds come before passing ones."""

VAGUE: Final = frozenset(
    {
        *(pb.FAILURE_KIND_RATE_LIMITED, pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE, pb.FAILURE_KIND_NETWORK),
        pb.FAILURE_KIND_INVALID_CONFIG,
    }
)
"""Kinds whose texts say less than a status in `KIND_BY_STATUS`: "error sending request: 401 Unauthorized", or the
"invalid_request_error" that OpenAI calls any 4xx."""
_REASONS: Final = (
    r"bad request|unauthori[sz]ed|payment required|forbidden|not found|request timeout|conflict|gone"
    r"|payload too large|content too large|request entity too large|unprocessable|too many requests"
    r"|internal server error|not implemented|bad gateway|service unavailable|gateway time-?out|overloaded"
    r"|the server had an error|rate limit|(?:incorrect|invalid) (?:x-)?api[- ]key|status code"
)
STATUS: Final = LazyPattern(
    rf"\b(?P<reasoned>[45][0-9]{{2}})\b[\s:,-]{{1,3}}(?:{_REASONS})\b",
    r"\bHTTP(?:/[0-9](?:\.[0-9])?)?(?: (?:status|error|code))*:? ?(?P<http>[45][0-9]{2})\b",
    r"(?<![a-z])(?<!exit )status(?:[ _]?code)?\\?[\"']?\s?[:=]?\s?[\"']?(?:of )?(?P<status>[45][0-9]{2})\b",
    r"\bapi[ _]error[: ]{1,2}\(?(?P<api>[45][0-9]{2})\b|\brequest rejected \((?P<rejected>[45][0-9]{2})\)",
    r"(?<![a-z])(?<!exit )(?:error|code)(?:[ _]code)?\\?[\"']?\s?[:=]\s?[\"']?(?P<code>[45][0-9]{2})"
    r"(?=[\"',;})\].]|\s*$|\s[{\[(])",
)
"""An HTTP status, with the text that makes a number one. Exactly one named group holds it."""

KIND_BY_STATUS: Final[Mapping[int, pb.FailureKind.ValueType]] = {
    401: pb.FAILURE_KIND_AUTH_REQUIRED,
    402: pb.FAILURE_KIND_QUOTA_EXCEEDED,
    403: pb.FAILURE_KIND_AUTH_REQUIRED,
    407: pb.FAILURE_KIND_NETWORK,  # a proxy wants to be logged in to
    408: pb.FAILURE_KIND_UPSTREAM_UNAVAILABLE,
    413: pb.FAILURE_KIND_CONTEXT_OVERFLOW,
    429: pb.FAILURE_KIND_RATE_LIMITED,
}
"""What a status below 500 says by itself."""

REJECTED: Final = frozenset({400, 404, 405, 409, 410, 415, 422})
"""Statuses of a request that the service rejects as wrong. Any text about a cause is more precise."""

LEADING_STATUS: Final = LazyPattern(r"^(?P<leading>[45][0-9]{2}):? (?=\S)")
"""The status at the begin of a line, as OpenAI's and Anthropic's client libraries write their errors."""
