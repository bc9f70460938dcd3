"""Everything that operators see of a running gateway: status, metrics, logs, the HTTP port and its
web page.

    status_board                      collects what the other packages report
    status_types, table_status, lag, mirror_status
                                      the values in it, and the lag computed from them
    metrics, logs                     Prometheus metrics; log lines
    http_server, http_socket, http_routes, web_ui
                                      the HTTP port
    http_client                       queries the HTTP port of another process

In: values that other packages report. Out: HTTP responses, metrics and log lines. This package
must not know PostgreSQL, Kafka or the registry; of the gateway, it imports only gateway/errors.py.
"""
