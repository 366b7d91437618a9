"""The dashboard: server-rendered pages under `/app`, in the same server as the API.

    site      puts the pages together          entering   who looks, and into which tenant
    drawing   a template, in the reader's language, as an answer        words    the two languages
    forms     what a form sends, once          files      the style sheet and the module of the browser
    faults    errors as pages                  pictures   charts and waterfalls as figures to be drawn

A page is thin: it reads the request, asks `asked.desk`, and shapes the answer for its template.
"""
