"""Inputs in mid-run: what is wrong with one, and its acceptance with the files that come with it."""

from dragoman.protocol.errors import DragomanError, FieldViolation, Reason, invalid_fields, not_supported
from dragoman.protocol.identity import is_run_id
from dragoman.sdk._output.attached import AttachedFile
from dragoman.sdk._request.attachments import AttachmentError, refuse_images, wrong_attachments
from dragoman.sdk._run.run import Run
from dragoman.sdk._run.sent_inputs import mode_of
from dragoman.sdk.spec import AdapterInfo
from dragoman.v1 import adapter_pb2
from dragoman.v1 import event_pb2 as pb


def check_input(request: adapter_pb2.SendRequest) -> None:
    """Check an input by itself.

    Raises:
        DragomanError: INVALID_REQUEST with the wrong fields.
    """
    wrong = []
    if not is_run_id(request.input_id):
        wrong.append(FieldViolation("input_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}"))
    if not request.text:
        wrong.append(FieldViolation("text", "must not be empty"))
    if request.mode not in pb.InputMode.values():
        wrong.append(FieldViolation("mode", f"{request.mode} is not known; it is STEER or QUEUE"))
    wrong += wrong_attachments(request.attachments)
    if wrong:
        raise invalid_fields(wrong)


def refuse_undeclared(info: AdapterInfo, request: adapter_pb2.SendRequest) -> None:
    """Refuse an input that an adapter does not take in this way.

    Raises:
        DragomanError: NOT_SUPPORTED.
    """
    if mode_of(request) == pb.INPUT_MODE_STEER:
        if not info.has(pb.FEATURE_STEER):
            raise not_supported("mode", f"{info.label} takes no input in its present turn; queue it, or start a run")
    elif not info.has(pb.FEATURE_QUEUE):
        raise not_supported("mode", f"{info.label} has one turn in each run; start another run afterwards")
    if request.attachments and not info.has(pb.FEATURE_ATTACHMENTS):
        raise not_supported("attachments", f"{info.label} has no attachments; leave it out")
    refuse_images(request.attachments, info)


async def accept_input(run: Run, request: adapter_pb2.SendRequest, sender: str) -> int:
    """Accept an input, once its files are laid out, and return the sequence of ``input_accepted``.

    Raises:
        DragomanError: INPUT_ID_REUSED, RUN_FINISHED, TOO_MANY_INPUTS, or INVALID_REQUEST: a file is gone.
    """
    if (known := run.sent.repeated(request)) is not None:
        return known
    run.sent.check_open(request)
    files = await _laid_out(run, request) if request.attachments else ()
    try:
        # While files were written, the same input may have come again.
        known = run.sent.repeated(request)
        if known is None:
            return run.sent.accept(request, sender, files)
    except DragomanError:
        _remove(run, files)
        raise
    _remove(run, files)
    return known


async def _laid_out(run: Run, request: adapter_pb2.SendRequest) -> tuple[AttachedFile, ...]:
    try:
        if run.files is None:
            raise DragomanError(Reason.RUN_FINISHED, f"run {run.run_id!r} takes no files", {"run_id": run.run_id})
        return await run.files.lay_out_sent(request.attachments)
    except (AttachmentError, OSError) as error:
        run.sent.check_open(request)  # at the end of a run, its directory goes
        why = str(error) if isinstance(error, AttachmentError) else f"a file cannot be written: {error.strerror}"
        raise invalid_fields([FieldViolation("attachments", run.redactor.text(why))]) from error


def _remove(run: Run, files: tuple[AttachedFile, ...]) -> None:
    if run.files is not None:
        run.files.remove(files)
