"""What the engine says, in the reader's language.

The engine writes its sentences in English, beside the codes and values they are made of, and what is written
is not changed. A page recognises the sentence and says the same in another language. What it does not know,
such as the words of an exception, stays as it is and is marked as English.
"""

from __future__ import annotations

import re
from functools import cache

from markupsafe import Markup, escape

from redrive.server.pages.words import N, Words

__all__ = ["SENTENCES", "known", "said"]

SENTENCES = (
    # why a step, a run or a rollback failed
    N("step '{step}' failed once ({category}): {why}"),
    N("step '{step}' failed {n} times ({category}): {why}"),
    N("step '{step}' could not be undone: {why}"),
    N("workflow '{workflow}' raised {error}"),
    N("the input of workflow '{workflow}' cannot be used: {why}"),
    N("what '{step}' was called with cannot be used: {why}"),
    N("what the store holds of this run cannot be read: {why}"),
    N("{n} workers died while they executed this run"),
    N("only step '{step}' was replayed; retrying the run from_failed goes on with it"),
    N("the run passed its deadline"),
    N("the run was rolled back"),
    N("cancelled by {who}"),
    # what was decided after an attempt
    N("attempt {n} of {of}, {then}"),
    N("attempt {n}, {then}"),
    N("attempt {n}: {then}"),
    N("HTTP {status}, {then}"),
    N("timed out, {then}"),
    N("network error, {then}"),
    N("rate limited, {then}"),
    N("server error, {then}"),
    N("dependency unavailable, {then}"),
    N("invalid data, {then}"),
    N("not authorised, {then}"),
    N("not found, {then}"),
    N("refused by the other side, {then}"),
    N("configuration missing, {then}"),
    N("error in the code, {then}"),
    N("unclassified error, {then}"),
    N("waiting {time}, next at {at}"),
    N("waiting {time}"),
    N("Retry-After {time} + {more} jitter, next at {at}"),
    N("Retry-After {time} + {more} jitter"),
    N("Retry-After {time}, next at {at}"),
    N("Retry-After {time}"),
    N("not retried: {why}"),
    N("succeeded"),
    N("cancelled"),
    N("the worker died; the attempt is repeated under the same number"),
    N("the worker stopped; the attempt is repeated under the same number"),
    N("cut short: it may have happened, and is not called again"),
    N("not called: the circuit was open, so it waits at no cost"),
    # why it is not tried again
    N("retries are exhausted"),
    N("the policy allows no retry"),
    N("another try would pass the limit of {time} since the first"),
    N("the step runs at most once"),
    N("it was raised as NonRetryable"),
    N("the policy names it in never_retry_on"),
    N("the policy's retry_on does not name it"),
    N("failures of category {category} are not retried"),
    # what a dry run warns of
    N("the code has changed since: recorded with version {version}, the newest is {newest}"),
    N("no code ever registered workflow '{workflow}': nothing will run until a worker has it"),
    N("no worker that is alive has workflow '{workflow}': it is refused until one has it"),
    N("results that are reused were computed from the original input"),
    N(
        "{names} is called with the idempotency key of the original input: a service that has seen the key "
        "may answer as it did then; new_operation sends a new key"
    ),
    N(
        "{names} are called with the idempotency key of the original input: a service that has seen the key "
        "may answer as it did then; new_operation sends a new key"
    ),
    N("outside services will see new idempotency keys and take every call for a new one"),
    N("{step} was cut short: it may have happened, so look first"),
    N("{step} succeeded before and acts on the outside world again: {effect}"),
    # why a view is not saved, or not removed
    N("views are of {lists}, not of {given}"),
    N("tenant {tenant} shares {n} views of this list already; remove one of them first"),
    N("you have {n} views of this list already; remove one of them first"),
    N("there is no shared view {name} of this list"),
    N("there is no view {name} of this list"),
    N("a view has a name of 1 to {n} printable characters without a slash, not {given}"),
    N("the filter of a view is at most {n} characters long; leave something out"),
    N("{list} cannot be narrowed by {names}; there are {known}"),
    N("the filter of a view asks for something, such as code=timeout: narrow the list first"),
    # why a decision on many, or one on a letter, is refused
    N("there is no set {id}"),
    N("set {id} is done: all its letters were decided on"),
    N("set {id} was stopped by {who}; begin another one for what is left"),
    N("no dead letter is selected; select some, or choose all that match"),
    N("there is no dead letter {id}, or its run was purged"),
    N("there is no dead letter {id}"),
    N("run {run} was purged: its input and steps are gone, it cannot be replayed"),
    N("run {run} was replayed as {other}; decide about that one"),
    N("{id} is being replayed already, with another decision; wait how that ends"),
    N("{id} is resolved ({how}): see its run {run}"),
    N("{id} was closed ({how}); retry its run {run} instead"),
    N("{id} is {status} already ({how}): add a comment to say more"),
    N("{id} is {status} and cannot be closed as {other}"),
    N("{id} is no id of a dead letter"),
    N(
        "no worker that is alive has workflow '{workflow}' any more, so nobody would go on with it: start a "
        "worker that has it, then decide again"
    ),
    # what a form about a replay lacks
    N("the form has no fields for what you changed: go on with it as JSON"),
    N("this way keeps the input as it was: take your change back, or choose another way"),
    N("an object from name to value is needed here, such as {example}"),
    N("a retry policy is an object, such as {example}"),
    N("choose the step to go on from"),
    N("say what the step gave, as JSON, such as {example}"),
    N("the result is no JSON: {why}. A text needs quotes, such as {example}"),
    N("{field} has a NUL or half a character in it, which no database stores"),
)
"""By first match, so what is more particular stands before what is less so."""

_FIELD = re.compile(r"{(\w+)}")
_NAMES = ("step", "workflow")
_SENTENCES_WITHIN = ("why", "then")
_LONGEST = 2_000


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(_pattern(text), re.DOTALL), text) for text in SENTENCES)


def _pattern(text: str) -> str:
    fixed, *rest = _FIELD.split(text)
    pairs = zip(rest[::2], rest[1::2], strict=True)
    values = (f"(?P<{name}>{_value_of(name)}){re.escape(after)}" for name, after in pairs)
    return "".join([re.escape(fixed), *values])


def _value_of(name: str) -> str:
    return "[^']+?" if name in _NAMES else ".+?"


def known(text: str) -> tuple[str, dict[str, str]] | None:
    """The sentence that this is, with its values; None if it is none of the engine's."""
    for pattern, sentence in _patterns():
        if found := pattern.fullmatch(text):
            return sentence, found.groupdict()
    return None


def said(t: Words, text: str | None) -> Markup:
    """A sentence of the engine in the reader's language; one that nobody knows stays English, marked so."""
    text = (text or "")[:_LONGEST]
    if t.language == "en":
        return escape(text)
    if (found := known(text)) is None:
        return Markup('<span lang="en" dir="auto">{}</span>').format(text)
    sentence, values = found
    within = {name: said(t, value) for name, value in values.items() if name in _SENTENCES_WITHIN}
    return t(sentence, **{**values, **within})
