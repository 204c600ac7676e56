"""What all programs that speak ``dragoman.v1`` share. Names without an underscore are for our other parts.

* A run's stream: ``order`` and ``items`` say what may follow what, ``wire`` reads events as bytes, ``event_buffer``
  has them for many readers, ``keepalive`` counts those for which a run lives on, ``outgoing`` fits what is sent.
* A request: ``bounds`` and ``limits`` say how large it may be, ``duties`` who honours each field; ``templates`` make
  its prompt, ``identity`` compares it, ``sessions`` finds out whether a stored session fits it.
* A run: ``budgets``, ``clocks`` and ``work`` follow what it uses, how long it takes, and whether work has begun.
* What goes wrong: ``errors`` are statuses with reasons, ``failures`` those of agents, ``backoff`` the delays between
  retries.
* Secrets: ``secrets`` and ``redaction`` find them and take them out of texts.
* Who talks to whom: ``server`` and ``dialing`` are the two ends, ``addresses``, ``tls`` and ``wary`` where and how;
  ``access`` and ``callers`` find out who calls, ``caller`` what that one may do, by the files of ``private``,
  ``tokens`` and ``trust``; ``egress`` says which other hosts may be called.
* What is reported: ``logs``, ``audit``, ``tracing`` and ``telemetry``.
"""

REVISION = 1
"""The revision of the protocol that this distribution speaks (DescribeResponse.revision)."""
