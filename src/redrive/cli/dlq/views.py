"""What a saved view asks for, as the options of `dlq list` would say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redrive.app import Redrive
from redrive.cli.messages import NOT_FOUND, CommandFailed
from redrive.cli.options import TIME_TYPE, current_user
from redrive.desk.saved_views import ListName, SavedView, normalize_name


async def load_view_filter(app: Redrive, name: str, tenant: str | None) -> dict[str, Any]:
    """The filter of a view of dead letters, for its tenant; one's own goes before one that is shared."""
    views = await app.views.list(ListName.LETTERS, reader=current_user(), tenant=tenant)
    found = [view for view in views if view.name == normalize_name(name)]
    if not found:
        raise CommandFailed(f"there is no view {name!r} of dead letters{_list_known_views(views)}", NOT_FOUND)
    view = min(found, key=lambda view: view.shared)
    return {**_convert_view_filter(view.wanted), "tenant": view.tenant}


def _list_known_views(views: list[SavedView]) -> str:
    names = ", ".join(repr(name) for name in dict.fromkeys(view.name for view in views))
    return f"; there are {names}" if names else "; the dashboard saves them, each for one --tenant"


def _convert_view_filter(wanted: Mapping[str, str]) -> dict[str, Any]:
    filters: dict[str, Any] = dict(wanted)
    for name in ("since", "until"):
        if name in filters:
            filters[name] = TIME_TYPE.convert(filters[name], None, None)
    if "index" in filters:
        field, _, value = filters["index"].partition(":")
        filters["index"] = {field: value}
    return filters
