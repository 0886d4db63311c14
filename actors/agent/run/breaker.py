"""Circuit breakers of models (DeerFlow's middleware LLMErrorHandling)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cachetools import LRUCache

from core.config.agent import CircuitBreaker

Admission = Literal["call", "probe"]


@dataclass(slots=True)
class Breaker:
    """The circuit breaker of one model. Times are seconds of a monotonic clock.

    Closed, it admits every call; open, none; then, half-open, one call at a time until one succeeds or fails. Each
    admitted call ends with `succeeded`, `failed` or `freed`.
    """

    threshold: int = 5
    recovery_seconds: float = 60
    failures: int = 0
    opened_at: float | None = None
    probing: bool = False

    def state(self, now: float) -> Literal["closed", "open", "half-open"]:
        if self.opened_at is None:
            return "closed"
        return "open" if now < self.opened_at + self.recovery_seconds else "half-open"

    def admit(self, now: float) -> Admission | None:
        """Admits a call, or returns None. A `probe` takes the only slot of a half-open circuit."""
        match self.state(now):
            case "closed":
                return "call"
            case "half-open" if not self.probing:
                self.probing = True
                return "probe"
            case _:
                return None

    def wait_seconds(self, now: float) -> float:
        """Returns the seconds until the next call may be admitted."""
        return 0.0 if self.opened_at is None else max(0.0, self.opened_at + self.recovery_seconds - now)

    def succeeded(self, admission: Admission) -> None:
        """Closes the circuit."""
        self.failures, self.opened_at, self.probing = 0, None, False

    def failed(self, admission: Admission, now: float, *, retriable: bool) -> None:
        """Counts a call that failed after all its attempts, and opens the circuit at the threshold.

        Errors that are not retriable do not count, nor calls that began before the circuit opened.
        """
        if not retriable:
            self.freed(admission)
        elif admission == "probe" and self.probing:
            self.opened_at, self.probing = now, False
        elif self.opened_at is None:
            self.failures += 1
            if self.failures >= self.threshold:
                self.opened_at = now

    def freed(self, admission: Admission) -> None:
        """Returns the slot of a call without an outcome: cancelled, paused, or failed through no fault of the model."""
        if admission == "probe":
            self.probing = False


KEPT_BREAKERS = 10_000


class Breakers:
    """The circuit breakers of models, each shared by a user's runs in this process: the failures of one person's
    conversations say nothing about those of another.
    """

    def __init__(self) -> None:
        self._breakers: LRUCache[tuple[str, str], Breaker] = LRUCache(KEPT_BREAKERS)

    def of(self, model: str, user: str, limits: CircuitBreaker) -> Breaker:
        breaker = self._breakers.setdefault((model, user), Breaker())
        breaker.threshold, breaker.recovery_seconds = limits.failure_threshold, limits.recovery_timeout_sec
        return breaker
