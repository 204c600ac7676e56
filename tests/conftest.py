"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A busy machine is no fault: no property here is about time, and each test has the timeout of pytest anyway.
settings.register_profile("dragoman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dragoman")
