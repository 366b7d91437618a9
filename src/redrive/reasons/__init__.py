"""Reasons as data, and their sentences in each language."""

from redrive.reasons.codes import ReasonCode
from redrive.reasons.reason import ENGLISH, POLISH, Catalogue, Param, Reason, quote, render

__all__ = ["ENGLISH", "POLISH", "Catalogue", "Param", "Reason", "ReasonCode", "quote", "render"]
