"""Routes of the HTTP API, one module for each kind of resource.

The desk describes its operations (`desk/api_operations.py`): method, path, permission. A route that only passes its
parameters on is made from that description, and one that does more has a function:

    add_operations(routes, lambda context: context.desk.circuits, Circuits.get, Circuits.open)

    @serve(routes, Circuits.list)
    async def list_circuits(context: Context, limit: Limit = 50, cursor: Cursor = None) -> Page[CircuitRecord]:
        "Return a page of circuits."
        return await context.desk.circuits.list(limit=limit, cursor=cursor)

The OpenAPI document, the check of the permission and the tests of tenants and roles follow from the description.
"""
