"""Reasons as data, and their sentences in each language."""

from redrive.reasons.codes import Catalogue, ReasonCode
from redrive.reasons.english import ENGLISH
from redrive.reasons.reason import Param, Reason, quote, render

__all__ = ["ENGLISH", "Catalogue", "Param", "Reason", "ReasonCode", "quote", "render"]
