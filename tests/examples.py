"""Settings with which Hypothesis chooses the same examples in every run, regardless of the machine's speed."""

from hypothesis import HealthCheck, settings

STEADY = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
