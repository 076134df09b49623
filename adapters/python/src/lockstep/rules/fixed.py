"""Coefficients that are given: for probes, and for checks of the gradient alone."""

from __future__ import annotations

from dataclasses import dataclass

from .array import Array
from .rows import Correction, Rows, TailTerm


@dataclass(frozen=True)
class Fixed:
    """``(w, c)`` as they are, for the known entries in their order."""

    w: Array
    c: Array | None = None
    tail: TailTerm | None = None

    @property
    def local(self) -> bool:
        """Its coefficients belong to the batch as it was given."""
        return False

    @property
    def needs_scores(self) -> bool:
        """Only a tail on p_s does."""
        return self.tail is not None

    def weigh(self, rows: Rows) -> Correction:
        """The given coefficients."""
        return Correction(self.w, self.c, self.tail)
