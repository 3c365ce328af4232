"""The one schema of requests and answers: HTTP, Arrow, the client, the command line and the
console are made from it. No module needs torch.

| module          | what it defines                                                                   |
|-----------------|-----------------------------------------------------------------------------------|
| `search_params` | how much a search looks at                                                        |
| `ranker`        | which heavy ranker                                                                |
| `deployment`    | how a deployment calls its heavy ranker, and where that runs                      |
| `fields`        | types of single fields, and how a message repeats a value                         |
| `queries`       | a query: one field of a form, and what may stand beside it                        |
| `filters`       | which items a search may find, by their attributes                                |
| `requests`      | requests: search, explain, feedback; cut-offs, methods and budgets                |
| `items`         | requests that change items                                                        |
| `responses`     | their answers                                                                     |
"""
