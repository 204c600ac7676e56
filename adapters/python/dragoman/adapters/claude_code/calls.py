"""The tool calls of a run, with the files and the to-do list that they change. Pure."""

from collections.abc import Container, Iterator

from dragoman.adapters.claude_code.todo import TodoList
from dragoman.adapters.claude_code.tools import exit_code, file_change, result_status, result_text, tool_call
from dragoman.sdk import Answer
from dragoman.sdk.fields import Fields, compact, inner, parse_json_object, text
from dragoman.v1 import event_pb2 as pb


class Calls:
    """The calls of one attempt."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, Fields]] = {}
        self._todo = TodoList()

    def begin(self, block: Fields, cwd: str) -> Iterator[pb.AgentEvent]:
        """Handle a block that calls a tool."""
        call_id, name, tool_input = text(block, "id"), text(block, "name"), inner(block, "input")
        if call_id:
            self._open[call_id] = (name, tool_input)
            call = tool_call(call_id, name, tool_input, cwd, pb.TOOL_STATUS_RUNNING)
            yield pb.AgentEvent(tool_call=call)

    def note_answer(self, call_id: str, answer: Answer) -> None:
        """Note the answer to a permission request: it may change the call's input."""
        changed = parse_json_object(answer.updated_input_json.encode()) if answer.updated_input_json else None
        if answer.allowed and changed is not None and call_id in self._open:
            self._open[call_id] = (self._open[call_id][0], changed)

    def end(
        self, block: Fields, structured: Fields, meta: Fields, *, denied: Container[str]
    ) -> Iterator[pb.AgentEvent]:
        """Handle a result.

        Args:
            block: the result for the model.
            structured: ``tool_use_result`` of the frame; empty if it may be another call's.
            meta: ``tool_result_meta`` of this call, or empty.
            denied: calls that earlier frames reported as denied.
        """
        call_id = text(block, "tool_use_id")
        name, tool_input = self._open.pop(call_id, ("", {}))
        content = result_text(block)
        status = result_status(block, content, meta, was_denied=call_id in denied)
        is_error = block.get("is_error")
        result = pb.ToolResult(
            tool_call_id=call_id,
            status=status,
            content=content,
            is_error=is_error if isinstance(is_error, bool) else None,
            exit_code=exit_code(name, content),
            output_json=compact(structured) if structured else "",
        )
        yield pb.AgentEvent(tool_result=result)
        if status != pb.TOOL_STATUS_COMPLETED:
            return
        change = file_change(name, call_id, tool_input, structured, content)
        if change is not None:
            yield pb.AgentEvent(file_change=change)
        plan = self._todo.after(name, tool_input, structured)
        if plan is not None:
            yield pb.AgentEvent(plan=plan)
