"""What is wrong with a plan, apart from the plan itself: who reports it needs no more."""


class PlanError(TypeError):
    """What an adapter planned is no plan. The text names fields and types, never a value: callers may see it."""


class OutputError(PlanError):
    """What a parser returned has something that is no output."""
