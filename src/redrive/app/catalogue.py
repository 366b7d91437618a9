"""What an app registers, told to processes that do not have its code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from redrive.app.version import code_version
from redrive.app.workflow import Workflow
from redrive.core.payload import Signature
from redrive.store.workers import Catalogue, CatalogueItem
from redrive.worker.definitions import Step

__all__ = ["catalogue_of", "version_of"]

_Workflows = Mapping[str, Workflow[Any, Any, Any]]
_Steps = Mapping[str, Step[Any, Any]]


def version_of(workflows: _Workflows, steps: _Steps) -> str:
    """The version of registered code, made from all of it."""
    functions = [(f"workflow {name}", w.fn) for name, w in workflows.items()]
    functions += [(f"step {name}{_written(s)}", s.fn) for name, s in steps.items()]
    return code_version(functions)


def _written(step: Step[Any, Any]) -> str:
    """What a declared action says, which is its code."""
    return "" if step.action is None else f" {json.dumps(step.action.to_json(), sort_keys=True)}"


def catalogue_of(version: str, workflows: _Workflows, steps: _Steps) -> Catalogue:
    """Everything that is registered, with its options and schemas."""
    return Catalogue(
        version=version,
        workflows=tuple(_item(name, w.catalogue_text, w.signature) for name, w in workflows.items()),
        steps=tuple(_item(name, s.options_text, s.signature) for name, s in steps.items()),
    )


def _item(name: str, options: str, signature: Signature) -> CatalogueItem:
    schema_in, schema_out = signature.schemas()
    return CatalogueItem(name=name, options=options, schema_in=schema_in, schema_out=schema_out)
