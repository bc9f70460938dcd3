"""What operators see of a running gateway: status, metrics, logs, the HTTP port and its web page.

The other packages report to `status_board`; everything shown here is read from it. Nothing here
asks PostgreSQL or Kafka.
"""
