"""What Copilot tells about its session: id, model, skills, tool servers, title. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from dragoman.sdk.fields import Fields, objects, text
from dragoman.v1 import event_pb2 as pb

TESTED_VERSION: Final = "1.0.102"
"""The version whose messages this adapter was written for and is tested with."""

Events = Iterable[pb.AgentEvent]


class SessionFrames:
    """Follows the session of one attempt. It is first told when its skills are known, and then when it changes."""

    def __init__(self) -> None:
        self.now = pb.Session()
        self._told = pb.Session()

    def connected(self, version: str) -> Iterator[pb.AgentEvent]:
        """Take Copilot's version."""
        self.now.agent_version = version
        if version == TESTED_VERSION:
            return
        known = f"Copilot CLI {version or 'of an unknown version'}"
        message = f"{known} is not the version this adapter is tested with ({TESTED_VERSION})."
        hint = "What it says that is not understood is shown as log lines; the run goes on."
        notice = pb.Notice(severity=pb.SEVERITY_WARNING, code="version_untested", message=message, hint=hint)
        yield pb.AgentEvent(notice=notice)

    def opened(self, data: Fields, agent: str) -> Events:
        """Take ``session.start`` or ``session.resume``."""
        del agent
        self.now.native_id = text(data, "sessionId") or self.now.native_id
        self.now.model = text(data, "selectedModel") or self.now.model
        return ()

    def skills_loaded(self, data: Fields, agent: str) -> Events:
        """Take ``session.skills_loaded``."""
        del agent
        del self.now.skills[:]
        self.now.skills.extend(text(skill, "name") for skill in objects(data, "skills"))
        return self.tell()

    def mcp_loaded(self, data: Fields, agent: str) -> Events:
        """Take ``session.mcp_servers_loaded``."""
        del agent
        del self.now.mcp_servers[:]
        for server in objects(data, "servers"):
            self.now.mcp_servers.add(name=text(server, "name"), status=text(server, "status"))
        return self.tell() if self._told.native_id else ()

    def titled(self, data: Fields, agent: str) -> Events:
        """Take ``session.title_changed``."""
        del agent
        self.now.title = text(data, "title")
        return self.tell() if self._told.native_id else ()

    def tell(self) -> Iterator[pb.AgentEvent]:
        """Yield the session, if there is something new in it."""
        if self.now.native_id and self.now != self._told:
            self._told.CopyFrom(self.now)
            event = pb.AgentEvent()
            event.session.CopyFrom(self.now)
            yield event
