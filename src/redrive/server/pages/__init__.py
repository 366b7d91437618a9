"""The dashboard: pages under `/app`, rendered by the same server as the API.

    render          templates, navigation, static files      forms          forms, each carried out once
    error_pages     the pages for errors                     lists          filters, files, saved views
    texts           translations, labels, formats            charts         sparklines, columns, the waterfall
    replay_form     the form of a replay

The other modules are pages. A page reads the request, asks `context.desk`, and renders a template.
"""
