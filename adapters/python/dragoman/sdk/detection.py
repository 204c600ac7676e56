"""Looking for an agent, its login and who pays for it."""

from dragoman.sdk._detection.agent import SelectedModel, program_environment, stored_file, stored_object
from dragoman.sdk._detection.auth import AuthFinding
from dragoman.sdk._detection.checks import Checks
from dragoman.sdk._detection.programs import converse, dialogue, find_executable, probe, version_of
from dragoman.sdk._output.billing import Billing, key_billing
from dragoman.sdk._run.login_lock import LoginLocks, RenewingLogin

__all__ = [
    "AuthFinding",
    "Billing",
    "Checks",
    "LoginLocks",
    "RenewingLogin",
    "SelectedModel",
    "converse",
    "dialogue",
    "find_executable",
    "key_billing",
    "probe",
    "program_environment",
    "stored_file",
    "stored_object",
    "version_of",
]
