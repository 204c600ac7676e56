"""The agent's to-do list, from either set of its tools: TodoWrite, or TaskCreate and TaskUpdate. Pure."""

from dragoman.sdk.fields import Fields, inner, objects, text
from dragoman.sdk.parsing import plan_entry
from dragoman.v1 import event_pb2 as pb


class TodoList:
    """Follows the list through successful calls of its tools."""

    def __init__(self) -> None:
        self._tasks: dict[str, pb.PlanEntry] = {}

    def after(self, tool: str, tool_input: Fields, structured: Fields) -> pb.Plan | None:
        """Return the whole plan after a call that went well; None if the call did not touch it."""
        if tool == "TodoWrite":
            return pb.Plan(entries=[plan_entry(item) for item in objects(tool_input, "todos")])
        if tool == "TaskCreate":
            task_id = text(inner(structured, "task"), "id")
            if not task_id:
                return None
            self._tasks[task_id] = pb.PlanEntry(
                id=task_id, content=text(tool_input, "subject"), status=pb.PLAN_ENTRY_STATUS_PENDING
            )
        elif tool != "TaskUpdate" or not self._update(tool_input):
            return None
        return pb.Plan(entries=self._tasks.values())

    def _update(self, tool_input: Fields) -> bool:
        task_id = text(tool_input, "taskId")
        entry = self._tasks.get(task_id)
        if entry is None:
            return False  # of an earlier run of this session; its content is unknown
        if text(tool_input, "status") == "deleted":
            del self._tasks[task_id]
            return True
        entry.content = text(tool_input, "subject") or entry.content
        entry.status = plan_entry(tool_input).status or entry.status
        return True
