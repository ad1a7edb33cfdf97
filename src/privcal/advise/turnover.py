"""Who is there at each of several campaigns, and who still counts.

At every source a row is a person. `samples` people are there at each campaign; from one campaign
to the next a share of them is replaced, the longest present first, and nobody comes back. At the
first campaign everybody is new.

With a budget for each person a campaign of ε/k is charged to everybody who counts in it, so a
person counts the first k times and then no more. People leave in the order in which they came.
So those who count in campaign c are those who came in the last k campaigns, as far as they are
still there: as many as came since campaign c − k, and at most all. That needs no simulation of
persons; a test does it with every person's own account.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any

from privcal.checks import number, whole

MAX_CAMPAIGNS = 1000


@dataclass(frozen=True)
class Turnover:
    """The people of one source over all campaigns."""

    samples: int
    campaigns: int
    share: Fraction
    """Of the people of a campaign, those who were not there at the one before."""

    @classmethod
    def of(cls, samples: int, campaigns: Any, new_people: Any) -> Turnover:
        whole("campaigns", campaigns, 1, MAX_CAMPAIGNS)
        number("new_people, a share,", new_people, 0, 1)
        return cls(samples, campaigns, Fraction(str(new_people)))

    def arrived(self, campaign: int) -> int:
        """How many people have been there up to this campaign; the first is 1.

        Rounded as a whole, not in each campaign: of 7.5 new people there are 8 and 7 in turn.
        """
        later = self.share * self.samples * (campaign - 1)
        return self.samples + floor(later + Fraction(1, 2))

    def new(self) -> tuple[int, ...]:
        """People who were not there before, in each campaign from the second on."""
        return tuple(self.arrived(c) - self.arrived(c - 1) for c in range(2, self.campaigns + 1))

    def counting(self, times: int) -> tuple[int, ...]:
        """Rows that count in each campaign where every person counts so many times."""
        return tuple(
            self.samples
            if c <= times
            else min(self.samples, self.arrived(c) - self.arrived(c - times))
            for c in range(1, self.campaigns + 1)
        )

    def choices(self) -> list[int]:
        """How many times a person may count: 1, 2, 3, 4, 6, 8, 12, …, and as many as campaigns.

        Not beyond the first at which all rows count in every campaign (more would only thin out
        ε), and none that leaves a campaign in which nobody counts: its answers were noise alone.
        """
        times = range(1, self.campaigns + 1)  # the more of them, the more rows count
        every = times[bisect_left(times, self.samples, key=self._least)]
        steps = {n << power for n in (1, 3) for power in range(every.bit_length())}
        fewer = {k for k in steps if k < every and self._least(k) > 0}
        return sorted(fewer | {every, self.campaigns})

    def _least(self, times: int) -> int:
        return min(self.counting(times))
