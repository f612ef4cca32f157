"""How Hypothesis chooses examples: the same ones in every run, however fast the machine is."""

from hypothesis import HealthCheck, settings

STEADY = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
