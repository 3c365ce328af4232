"""HTTP in front of a version: what is checked before a request is read, the routes, and how an answer is written.

It knows no Ray, so that a deployment on a cluster and a single process answer alike.

| member           | what it does                                                            |
|------------------|-------------------------------------------------------------------------|
| `limits`         | how much may be asked at once, and how long headers and a body may take |
| `ports`          | whether a server may listen at an address                               |
| `header_timeout` | a time limit for headers; answers in one write                          |
| `asgi`           | types of ASGI, and how a middleware refuses                             |
| `admission`      | the middlewares that a request passes before it is parsed, in order     |
| `keys`           | a file of API keys, and who gets in with them                           |
| `origins`        | middleware: pages of other origins                                      |
| `access`         | middleware: the key of a request, and the rate of that key              |
| `bodies`         | middleware: the size and the pace of a body                             |
| `places`         | middleware: requests answered at once                                   |
| `json_bodies`    | reading a body of JSON                                                  |
| `refusals`       | reading a body; status and message of each refusal                      |
| `request_ids`    | an id for each request, in its answer and in what is logged             |
| `logs`           | where what is logged goes                                               |
| `query_log`      | what was asked, if the operator wants it in the log                     |
| `api`            | the routes                                                              |
| `embedding`      | the query encoder by OpenAI's protocol and by KServe's                  |
| `items`          | adding, replacing and deleting items                                    |
| `console`        | the page at `/`                                                         |
| `arrow`          | bodies in Arrow's stream format                                         |
| `deadlines`      | how long a client waits                                                 |
| `instruments`    | metrics of one process, for Prometheus                                  |
| `traces`         | requests and stages as spans of OpenTelemetry                           |
| `streaming`      | an answer as JSON, in one piece or in many                              |
| `running`        | uvicorn in a thread, until its last answer                              |
| `single`         | all of it in one process, without Ray                                   |
| `workers`        | several such processes at one port                                      |
"""
