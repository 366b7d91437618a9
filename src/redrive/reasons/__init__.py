"""Reasons as data, and their sentences in each language."""

from redrive.reasons.catalogue import ENGLISH, POLISH, Catalogue
from redrive.reasons.codes import ReasonCode
from redrive.reasons.reason import Param, Reason, quote, render

__all__ = ["ENGLISH", "POLISH", "Catalogue", "Param", "Reason", "ReasonCode", "quote", "render"]
