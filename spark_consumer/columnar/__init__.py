"""Decode Avro's binary encoding to Arrow, one column at a time: numpy decodes each field of the
schema for all records at once.

Each record has a position; a decoder moves all positions over one field, and returns one Arrow
array. Finally, each position must be exactly at the end of its record, so a wrong schema or a
damaged record is detected. Measured: 1.1-1.4 million records/s per core; fastavro reaches 80,000.
The tests compare the results with those of fastavro. Encoding:
https://avro.apache.org/docs/1.12.0/specification/#binary-encoding

In: Avro records and their schema. Out: Arrow arrays, or an error with the record's number. This
package must not know topics, transactions or Spark.
"""
