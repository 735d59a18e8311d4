"""Windows of tuning draws, which grow by a factor of 1.5 and do not depend on the length of the tuning phase."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_ENDS = (2, 4, 6)
GROWTH = 1.5


def _ends() -> list[int]:
    ends = list(FIRST_ENDS)
    while ends[-1] < 10**6:
        ends.append(int(ends[-1] * GROWTH + 0.5))
    return ends


ENDS = _ends()


@dataclass
class Windows:
    """The windows of all adapters. They learn from the last two windows, a little more than half of all draws.

    ``restart`` begins again with short windows if earlier estimates are no longer valid.
    """

    start: int = 0
    restarts: list[int] = field(default_factory=list)

    def ends_at(self, draw: int) -> bool:
        """Whether a window ends after ``draw`` draws."""
        return draw - self.start in ENDS

    def left(self, draw: int) -> int:
        """Draws from ``draw`` to the end of its window."""
        return next(end for end in ENDS if end > draw - self.start) - (draw - self.start)

    def restart(self, draw: int) -> None:
        self.start = draw
        self.restarts.append(draw)
