"""The events about the session: ID, model, skills, MCP servers, title. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from dragoman.sdk.fields import Fields, objects, text
from dragoman.sdk.parsing import SessionFacts, version_notice
from dragoman.sdk.spec import agent_spec
from dragoman.v1 import event_pb2 as pb

TESTED_VERSION: Final = agent_spec(__package__).tested_version
"""The version whose messages this adapter was written for and is tested with."""

Events = Iterable[pb.AgentEvent]


class SessionFrames(SessionFacts):
    """Follows the session of one attempt. It is emitted when its skills are known, and then when it changes."""

    def connected(self, version: str) -> Iterator[pb.AgentEvent]:
        """Note Copilot's version."""
        self.now.agent_version = version
        return version_notice("Copilot CLI", version, TESTED_VERSION)

    def opened(self, data: Fields, agent: str) -> Events:
        """Handle ``session.start`` or ``session.resume``."""
        del agent
        self.now.native_id = text(data, "sessionId") or self.now.native_id
        self.now.model = text(data, "selectedModel") or self.now.model
        return ()

    def skills_loaded(self, data: Fields, agent: str) -> Events:
        """Handle ``session.skills_loaded``."""
        del agent
        del self.now.skills[:]
        self.now.skills.extend(text(skill, "name") for skill in objects(data, "skills"))
        return self.news()

    def mcp_loaded(self, data: Fields, agent: str) -> Events:
        """Handle ``session.mcp_servers_loaded``."""
        del agent
        del self.now.mcp_servers[:]
        for server in objects(data, "servers"):
            self.now.mcp_servers.add(name=text(server, "name"), status=text(server, "status"))
        return self.news() if self._emitted.native_id else ()

    def titled(self, data: Fields, agent: str) -> Events:
        """Handle ``session.title_changed``."""
        del agent
        self.now.title = text(data, "title")
        return self.news() if self._emitted.native_id else ()
