"""The dashboard: pages under `/app`, rendered by the same server as the API.

    render     templates, navigation, static files, error pages      forms      forms, each carried out once
    display    labels, durations, charts                             lists      filters, files, saved views
    translations    texts in English and Polish                      replay_form    the form of a replay

The other modules are pages. A page reads the request, asks `context.desk`, and renders a template.
"""
