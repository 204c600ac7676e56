"""Looking for an agent, its login and who pays for it."""

from dragoman.sdk._detection.agent import SelectedModel, stored_file, stored_object
from dragoman.sdk._detection.auth import AuthFinding
from dragoman.sdk._detection.checks import Checks
from dragoman.sdk._detection.programs import probe
from dragoman.sdk._output.billing import Billing, key_billing
from dragoman.sdk._run.login_lock import RenewingLogin

__all__ = [
    "AuthFinding",
    "Billing",
    "Checks",
    "RenewingLogin",
    "SelectedModel",
    "key_billing",
    "probe",
    "stored_file",
    "stored_object",
]
