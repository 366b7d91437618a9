"""The routes, one module for each kind of thing. To add one: write a function, and name its permission.

    @routes.post("/runs/{id}/cancel", **needs(Permission.CANCEL))
    async def cancel_run(asked: Asked, id: Id, body: Reason) -> Run:
        "Cancel a run for good."
        return await asked.desk.runs.cancel(id, by=asked.by, reason=body.reason or "")

The document, the check of the role, the answer to another tenant's id and the tests that try all of these
follow from that.
"""
