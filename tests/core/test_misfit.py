"""What does not fit is said in one way, and read again by whoever puts it beside its place."""

from __future__ import annotations

from redrive.core.misfit import misfit_in, said


def test_what_is_said_can_be_read_again() -> None:
    text = said("the input of workflow 'x'", ["order.id: expected an integer", "odd", "a[0]: is missing: b"])
    assert text == (
        "the input of workflow 'x' does not fit: order.id: expected an integer; odd; a[0]: is missing: b"
    )
    found = misfit_in(text)
    assert found is not None
    assert found.what == "the input of workflow 'x'"
    assert found.faults == (("order.id", "expected an integer"), ("", "odd"), ("a[0]", "is missing: b"))


def test_other_texts_say_nothing_of_the_kind() -> None:
    assert misfit_in("there is no dead letter 'x'") is None
