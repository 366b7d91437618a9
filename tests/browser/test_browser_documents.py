"""The page of the API's document."""

from browser_kit import Looking, complaints


def test_the_api_is_explained_to_everybody(looking: Looking) -> None:
    page = looking.stranger()
    page.goto("/api/docs")
    assert page.get_by_role("heading", name="Redrive API").is_visible()
    assert complaints(page) == []
